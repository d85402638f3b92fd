"""From a loss to gradients: the interface, what every producer shares, and plain autodiff."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.config import Part
from dovetail.learner.state import Arrays
from dovetail.module import Loss, Module, functional


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Produced:
    """What one step's worth of data gives."""

    gradients: Arrays
    """By the path of each trained parameter."""
    losses: dict[str, Any]
    """`Loss(total, weight)` by path, summed over the whole step."""
    summaries: dict[str, Any]
    """Merged over the whole step."""
    variables: Arrays
    """The model's variables after the step."""


@runtime_checkable
class GradientProducer(Protocol):
    """Computes gradients of the sum over losses of total / weight, each summed over the step."""

    def __call__(
        self,
        model: Module,
        trained: Arrays,
        fixed: Arrays,
        variables: Arrays,
        batch: Any,
        key: jax.Array,
    ) -> Produced:
        """Returns gradients with respect to `trained`; `fixed` completes the parameters."""
        ...

    def stage_axes(self) -> tuple[str, ...]:
        """Returns the mesh axes along which it runs different layers on different devices."""
        ...


class Autodiff(Part):
    """Differentiates one pass over the whole batch."""

    class Config(Part.Config["Autodiff"]):
        """Nothing to choose."""

    def __call__(
        self,
        model: Module,
        trained: Arrays,
        fixed: Arrays,
        variables: Arrays,
        batch: Any,
        key: jax.Array,
    ) -> Produced:
        """Returns the gradients of the batch."""

        def objective(trained: Arrays) -> tuple[jax.Array, Forward]:
            # Index 0: the whole batch is the first and only micro-batch, with its random numbers.
            forward = run(model, {**fixed, **trained}, variables, batch, jax.random.fold_in(key, 0))
            return total_loss(forward.losses, weights_of(forward.losses)), forward

        gradients, forward = jax.grad(objective, has_aux=True)(trained)
        return Produced(
            gradients=gradients,
            losses=forward.losses,
            summaries=forward.summaries,
            variables=forward.variables,
        )

    def stage_axes(self) -> tuple[str, ...]:
        """Returns none: every device runs all layers."""
        return ()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Forward:
    """What one pass of a model over (a part of) the batch leaves behind."""

    losses: dict[str, Any]
    summaries: dict[str, Any]
    variables: Arrays


def run(model: Module, params: Arrays, variables: Arrays, batch: Any, key: jax.Array) -> Forward:
    """Runs a model in training, and returns what it added on the side, in fixed types."""
    _, outputs = functional(
        model, params, batch, variables=variables, key=key, training=True, losses="return"
    )
    if not outputs.losses:
        raise ValueError(
            f"{type(model).__name__} added no loss, so there is nothing to learn from. "
            "Call self.add_loss(name, total, weight) in its method."
        )
    losses = {
        path: Loss(jnp.asarray(loss.total, jnp.float32), jnp.asarray(loss.weight, jnp.float32))
        for path, loss in outputs.losses.items()
    }
    updated = {
        path: jnp.asarray(value, variables[path].dtype)
        for path, value in (outputs.variables or {}).items()
    }
    return Forward(losses, jax.tree.map(jnp.asarray, outputs.summaries), updated)


def weights_of(losses: Mapping[str, Any]) -> Arrays:
    """Returns the weight of each loss."""
    return {path: loss.weight for path, loss in losses.items()}


def total_loss(losses: Mapping[str, Any], weights: Arrays) -> jax.Array:
    """Returns the sum over losses of total / weight.

    Weights only normalise: no gradient goes through them, with or without micro-batches. A loss
    with no weight at all (a batch of padding) counts as zero.
    """
    values = [
        Loss(loss.total, jax.lax.stop_gradient(weights[path])).value()
        for path, loss in sorted(losses.items())
    ]
    return sum(values[1:], values[0])
