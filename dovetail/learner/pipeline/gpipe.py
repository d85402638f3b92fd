"""GPipe: all microbatches forward, then all backward."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import interchangeable_with
from dovetail.learner.gradients import Autodiff
from dovetail.learner.pipeline.base import Pipeline
from dovetail.learner.pipeline.runner import StageRunner, write
from dovetail.learner.state import Arrays


@interchangeable_with(Autodiff)
class GPipe(Pipeline):
    """Differentiates the pipelined forward pass (https://arxiv.org/abs/1811.06965).

    Every slot saves its input and is recomputed, so activation memory grows with the number of
    microbatches.
    """

    def run(self, runner: StageRunner, variables: Arrays) -> tuple[Arrays, Arrays, Any, Arrays]:
        """Runs the forward ticks, and differentiates through them."""
        schedule = runner.schedule

        @jax.checkpoint
        def run_slot(stage: Arrays, shared: Arrays, variables: Arrays, x: Any, tick: Any) -> Any:
            chunk, index, is_active = schedule.forward(tick, runner.stage_index)
            index = jnp.clip(index, 0, schedule.microbatches - 1)
            params, before = ({p: v[chunk] for p, v in each.items()} for each in (stage, variables))
            (y, loss), (outputs, after) = runner.loss(params, shared, before, x, chunk, index)
            after = write(variables, after, (chunk,), is_active)
            return runner.send(y, forward=True), jnp.where(is_active, loss, 0.0), outputs, after

        def total_loss(trainable: tuple[Arrays, Arrays]) -> tuple[jax.Array, Any]:
            def tick(carry: Any, number: Any) -> Any:
                x, total, variables = carry
                x, loss, outputs, variables = run_slot(*trainable, variables, x, number)
                return (x, total + loss, variables), outputs

            first = (runner.zero_activation(), jnp.zeros((), jnp.float32), variables)
            carry, outputs = jax.lax.scan(tick, first, jnp.arange(schedule.forward_ticks))
            return carry[1], (outputs, carry[2])

        trainable = runner.trainable(runner.stage_params), runner.trainable(runner.shared_params)
        gradients, (outputs, after) = jax.grad(total_loss, has_aux=True)(trainable)
        stage, shared = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradients)
        merged = runner.merge_outputs(outputs, runner.stage_index, backward=False)
        return stage, shared, merged, after
