"""The training state, and the report of each step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

# Arrays by path. A TrainState may also hold shardings or logical axes instead of arrays.
Arrays = dict[str, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """The complete state of training. With the data order, it is all that resuming needs."""

    step: Any
    """The number of completed updates (int32)."""
    params: Arrays
    """The parameters by path, frozen ones included."""
    variables: Arrays
    """State that the model saves but does not train, by path."""
    optimizer: Any
    """The optimizer state, opaque to everything but the optimizer."""
    ema: Arrays
    """The moving average of the trainable parameters in float32; empty without EMA."""
    halted_at: Any
    """-1, or the `step` at which the loss, a gradient or an extra was not finite."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The results of one step, as device arrays: reading them blocks until the step is done."""

    loss: Any
    """The differentiated loss: the sum of all losses, each divided by its weight in the step."""
    losses: Arrays
    """Each loss, by the path of the module that added it."""
    summaries: Arrays
    """Summaries by path, merged over the step; `.value()` is the metric."""
    weight: Any
    """The weight of the main loss (see `main_loss`): its number of tokens."""
    gradient_norm: Any
    """The global norm of the gradient, before clipping."""
    learning_rate: Any
    """The learning rate of this step."""
    finite: Any
    """Whether loss, gradients and extras were finite; if not, the step was skipped."""
    non_finite_parameter: Any
    """The first parameter whose gradient is not finite, as an index into the sorted parameter
    paths; -1 if there is none, or if the loss itself is not finite."""
    finite_extras: Arrays = field(default_factory=dict)
    """Whether each extra that the optimizer uses was finite, by name."""


def averaged_parameters(state: TrainState) -> Arrays:
    """Returns the parameters to evaluate and export: the EMA where there is one."""
    averages = {path: value.astype(state.params[path].dtype) for path, value in state.ema.items()}
    return {**state.params, **averages}


def clear_halt(state: TrainState) -> TrainState:
    """Returns the state without its `halted_at` mark: the last good state, ready to resume."""
    return replace(state, halted_at=jnp.full_like(state.halted_at, -1))


def main_loss(paths: list[str]) -> str:
    """Returns the path of the main loss: the one added nearest to the root.

    A language model adds its cross-entropy at the top; auxiliary losses (a router's load balance)
    are deeper. Ties go to the first by name.
    """
    return min(paths, key=lambda path: (path.count("/"), path))
