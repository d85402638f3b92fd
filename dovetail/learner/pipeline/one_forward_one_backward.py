"""1F1B: a microbatch runs backward as soon as its forward pass is complete."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import interchangeable_with
from dovetail.learner.gradients import Autodiff
from dovetail.learner.pipeline.base import Pipeline
from dovetail.learner.pipeline.runner import Carry, StageRunner, zeros
from dovetail.learner.state import Arrays


@interchangeable_with(Autodiff)
class OneForwardOneBackward(Pipeline):
    """1F1B, interleaved if `repeats` is above 1 (https://arxiv.org/abs/2104.04473).

    A device saves the inputs of the microbatches in flight, about two for each stage, however many
    there are in all. It recomputes its layers in the backward pass.
    """

    def run(self, runner: StageRunner, variables: Arrays) -> tuple[Arrays, Arrays, Any, Arrays]:
        """Runs warmup (forward), steady state (forward and backward) and cooldown (backward)."""
        schedule = runner.schedule

        def steady_state(carry: Carry, tick: Any) -> Any:
            return runner.backward(runner.forward(carry, tick)[0], tick)

        start = _start(runner, variables)
        carry, _ = jax.lax.scan(runner.forward, start, jnp.arange(schedule.warmup_ticks))
        outputs = []
        for phase, begin, end in (
            (steady_state, schedule.warmup_ticks, schedule.forward_ticks),
            (runner.backward, schedule.forward_ticks, schedule.ticks),  # cooldown
        ):
            carry, found = jax.lax.scan(phase, carry, jnp.arange(begin, end))
            outputs.append(found)
        stacked = jax.tree.map(lambda *phases: jnp.concatenate(phases), *outputs)
        first = schedule.first_backward_tick(runner.stage_index) - schedule.warmup_ticks
        merged = runner.merge_outputs(stacked, first, backward=True)
        return carry.stage_gradients, carry.shared_gradients, merged, carry.variables


def _start(runner: StageRunner, variables: Arrays) -> Carry:
    x = runner.zero_activation()
    saved = (runner.schedule.repeats, runner.schedule.max_in_flight)
    return Carry(
        x=x,
        x_gradient=x,
        variables=variables,
        saved_inputs=jax.tree.map(lambda x: jnp.zeros((*saved, *x.shape), x.dtype), x),
        saved_variables=zeros(variables, lead=saved, drop=1),
        stage_gradients=zeros(runner.trainable(runner.stage_params), dtype=jnp.float32),
        shared_gradients=zeros(runner.trainable(runner.shared_params), dtype=jnp.float32),
    )
