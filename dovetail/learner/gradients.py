"""Gradient computation: the interface, the shared forward pass, and plain autodiff.

Other implementations are gradient accumulation (`accumulate.py`) and pipelines (`pipeline/`). One
that computes more than gradients, such as an estimate of the curvature every few steps, returns it
as an extra by name; an optimizer asks for it by that name (`optimizers/base.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.config import Component, ConfigError
from dovetail.learner.state import Arrays
from dovetail.module import Loss, Module, functional


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class GradientResult:
    """Gradients and side outputs of one step."""

    gradients: Arrays
    """By path, of the trainable parameters."""
    losses: dict[str, Any]
    """`Loss(total, weight)` by path, summed over the step."""
    summaries: dict[str, Any]
    """By path, merged over the step."""
    variables: Arrays
    """The model's variables after the step."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What an optimizer may need beyond gradients, by name: arrays by path of the trainable
    parameters, or any other tree of arrays. They are not clipped. Those that no optimizer asks for
    are dropped."""


@runtime_checkable
class GradientComputation(Protocol):
    """Computes the gradients of the loss: the sum of total / weight, each summed over the step.

    It is part of a run's identity. One that returns what `Autodiff` returns, computed in another
    way, is declared with `@interchangeable_with(Autodiff)`: a run may then resume with either.
    """

    def __call__(
        self,
        model: Module,
        trainable: Arrays,
        frozen: Arrays,
        variables: Arrays,
        batch: Any,
        key: jax.Array,
        step: jax.Array,
    ) -> GradientResult:
        """Returns gradients with respect to `trainable`; `frozen` are the other parameters.

        `step` is the number of completed updates, for what is computed only every few steps.
        """
        ...

    def stage_axes(self) -> tuple[str, ...]:
        """Returns the mesh axes whose devices run different layers (pipeline stages)."""
        ...


class Autodiff(Component):
    """Differentiates one forward pass over the batch."""

    def __call__(
        self,
        model: Module,
        trainable: Arrays,
        frozen: Arrays,
        variables: Arrays,
        batch: Any,
        key: jax.Array,
        step: jax.Array,
    ) -> GradientResult:
        """Returns the gradients of the batch."""

        def loss_fn(trainable: Arrays) -> tuple[jax.Array, ForwardOutputs]:
            # The batch is microbatch 0, so random numbers equal those of accumulation with one.
            micro_key = jax.random.fold_in(key, 0)
            outputs = run_forward(model, {**frozen, **trainable}, variables, batch, micro_key)
            return total_loss(outputs.losses, loss_weights(outputs.losses)), outputs

        gradients, outputs = jax.grad(loss_fn, has_aux=True)(trainable)
        return GradientResult(
            gradients=gradients,
            losses=outputs.losses,
            summaries=outputs.summaries,
            variables=outputs.variables,
        )

    def stage_axes(self) -> tuple[str, ...]:
        """Returns none: every device runs all layers."""
        return ()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ForwardOutputs:
    """The side outputs of one forward pass over a batch or microbatch."""

    losses: dict[str, Any]
    summaries: dict[str, Any]
    variables: Arrays


def run_forward(
    model: Module, params: Arrays, variables: Arrays, batch: Any, key: jax.Array
) -> ForwardOutputs:
    """Runs a model in training mode and returns its side outputs, losses in float32."""
    _, outputs = functional(
        model, params, batch, variables=variables, key=key, training=True, losses="return"
    )
    if not outputs.losses:
        raise ConfigError(
            f"{type(model).__name__} added no loss, so there is no gradient to compute. "
            "Call self.add_loss(name, total, weight) in its method."
        )
    updated = {
        path: jnp.asarray(value, variables[path].dtype)
        for path, value in (outputs.variables or {}).items()
    }
    summaries = jax.tree.map(jnp.asarray, outputs.summaries)
    return ForwardOutputs(float32_losses(outputs), summaries, updated)


def float32_losses(outputs: Any) -> dict[str, Loss]:
    """Returns the losses of a forward pass in float32."""
    return {
        path: Loss(jnp.asarray(loss.total, jnp.float32), jnp.asarray(loss.weight, jnp.float32))
        for path, loss in outputs.losses.items()
    }


def loss_weights(losses: Mapping[str, Any]) -> Arrays:
    """Returns the weight of each loss."""
    return {path: loss.weight for path, loss in losses.items()}


def total_loss(losses: Mapping[str, Any], weights: Arrays) -> jax.Array:
    """Returns the sum over losses of total / weight.

    Weights only normalize: no gradient flows through them, with or without microbatches. A loss
    whose weight is zero (a batch of padding) counts as zero.
    """
    values = [
        Loss(loss.total, jax.lax.stop_gradient(weights[path])).value()
        for path, loss in sorted(losses.items())
    ]
    return sum(values[1:], values[0])
