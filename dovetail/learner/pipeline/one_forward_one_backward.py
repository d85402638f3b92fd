"""1F1B: a micro-batch goes back as soon as it has gone through."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.learner.pipeline.producer import Pipeline
from dovetail.learner.pipeline.work import Carry, Work, zeros
from dovetail.learner.state import Arrays


class OneForwardOneBackward(Pipeline):
    """A pipeline with a backward of its own (https://arxiv.org/abs/2104.04473).

    A device keeps the inputs of the micro-batches that have yet to come back, about two for each
    stage, however many there are; and computes its layers again for the way back. With more rounds
    than one it is the interleaved schedule of the same paper.
    """

    class Config(Pipeline.Config):
        """As any pipeline's."""

    def run(self, work: Work, variables: Arrays) -> tuple[Arrays, Arrays, Any, Arrays]:
        """Ticks: at first only forward, then forward and backward, then only backward."""
        schedule = work.schedule

        def both(carry: Carry, tick: Any) -> Any:
            return work.backward(work.forward(carry, tick)[0], tick)

        carry, _ = jax.lax.scan(work.forward, _start(work, variables), jnp.arange(schedule.lead))
        sides = []
        for run, start, stop in (
            (both, schedule.lead, schedule.forward_ticks),
            (work.backward, schedule.forward_ticks, schedule.ticks),
        ):
            carry, side = jax.lax.scan(run, carry, jnp.arange(start, stop))
            sides.append(side)
        stacked = jax.tree.map(lambda *parts: jnp.concatenate(parts), *sides)
        first = schedule.first_backward(work.rank) - schedule.lead
        told = work.told(stacked, first, backward=True)
        return carry.own, carry.shared, told, carry.variables


def _start(work: Work, variables: Arrays) -> Carry:
    x, held = work.empty(), (work.schedule.rounds, work.schedule.held)
    return Carry(
        x=x,
        pull=x,
        variables=variables,
        inputs=jnp.zeros((*held, *x.shape), x.dtype),
        kept=zeros(variables, lead=held, drop=1),
        own=zeros(work.learns(work.own), dtype=jnp.float32),
        shared=zeros(work.learns(work.shared), dtype=jnp.float32),
    )
