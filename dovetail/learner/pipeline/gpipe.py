"""GPipe: all micro-batches forward, then all backward."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.learner.pipeline.producer import Pipeline
from dovetail.learner.pipeline.work import Work, put
from dovetail.learner.state import Arrays


class GPipe(Pipeline):
    """Differentiates the pipelined forward (https://arxiv.org/abs/1811.06965).

    Every turn keeps its input and is computed again, so what is kept grows with the number of
    micro-batches.
    """

    class Config(Pipeline.Config):
        """As any pipeline's."""

    def run(self, work: Work, variables: Arrays) -> tuple[Arrays, Arrays, Any, Arrays]:
        """Runs the forward ticks, and lets JAX go back through them."""
        schedule = work.schedule

        @jax.checkpoint
        def turn(own: Arrays, shared: Arrays, variables: Arrays, x: Any, tick: Any) -> Any:
            part, index, is_due = schedule.forward(tick, work.rank)
            index = jnp.clip(index, 0, schedule.microbatches - 1)
            mine, now = ({p: v[part] for p, v in each.items()} for each in (own, variables))
            (y, added), (side, after) = work.objective(mine, shared, now, x, part, index)
            after = put(variables, after, (part,), is_due)
            return work.sent(y, ahead=True), jnp.where(is_due, added, 0.0), side, after

        def total(trained: tuple[Arrays, Arrays]) -> tuple[jax.Array, Any]:
            def tick(carry: Any, number: Any) -> Any:
                x, added, variables = carry
                x, more, side, variables = turn(*trained, variables, x, number)
                return (x, added + more, variables), side

            first = (work.empty(), jnp.zeros((), jnp.float32), variables)
            carry, sides = jax.lax.scan(tick, first, jnp.arange(schedule.forward_ticks))
            return carry[1], (sides, carry[2])

        trained = work.learns(work.own), work.learns(work.shared)
        gradients, (sides, after) = jax.grad(total, has_aux=True)(trained)
        own, shared = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradients)
        return own, shared, work.told(sides, work.rank, backward=False), after
