"""What training carries from step to step, and what each step reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

# Arrays by path. In a TrainState of shardings or logical axes, those stand in place of the arrays.
Arrays = dict[str, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """The whole state of training: with the data order, all that a run needs to go on."""

    step: Any
    """How many updates are complete (int32)."""
    params: Arrays
    """The parameters by path, frozen ones included."""
    variables: Arrays
    """What the model saves but does not train."""
    optimizer: Any
    """The optimizer's own state, which only the optimizer understands."""
    ema: Arrays
    """The running average of the trained parameters in float32; empty where none is kept."""
    halted_at: Any
    """-1, or the step (how many were complete before) whose loss or gradient was not finite."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step found out, as arrays still on the device: read it when they are ready."""

    loss: Any
    """What the gradient is of: the sum of all losses, each divided by its weight in the step."""
    losses: Arrays
    """Each of them, by the path that added it."""
    summaries: Arrays
    """Summaries by path, merged over the step; `.value()` is the figure."""
    weight: Any
    """The weight of the main loss (see `main_loss`): the tokens that counted."""
    gradient_norm: Any
    """The global norm of the gradient, before clipping."""
    learning_rate: Any
    """The learning rate of this step."""
    finite: Any
    """Whether loss and gradient were finite."""
    bad_parameter: Any
    """The first parameter with a gradient that is not finite, as an index into the sorted parameter
    paths; -1 where there is none, or where the loss itself is not finite."""


def averaged_parameters(state: TrainState) -> Arrays:
    """Returns the parameters to evaluate and export: the averages, where they are kept."""
    averages = {path: value.astype(state.params[path].dtype) for path, value in state.ema.items()}
    return {**state.params, **averages}


def resumable(state: TrainState) -> TrainState:
    """Returns the state with its mark of a bad step taken off: the last good one, to go on from."""
    return replace(state, halted_at=jnp.full_like(state.halted_at, -1))


def main_loss(paths: list[str]) -> str:
    """Returns the path of the loss that the model is about: the one added nearest to the root.

    A language model adds its cross-entropy at the top; what parts inside add (a router's balance)
    lies deeper. Among equals the first by name.
    """
    return min(paths, key=lambda path: (path.count("/"), path))
