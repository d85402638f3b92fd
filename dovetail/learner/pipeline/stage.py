"""What one device of a pipeline runs: its parts of the layers, and what stands around them.

Every device runs the same program. The beginning and the end of the model run everywhere, since all
devices tick together and would only wait otherwise; what is not a device's own is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.learner.gradients import total_loss
from dovetail.learner.state import Arrays
from dovetail.module import Loss, Module, functional

PIPELINE = "pipeline"


@runtime_checkable
class Staged(Protocol):
    """A model that a pipeline can split: `__call__` is begin, then all parts, then end."""

    def begin(self, batch: Any, /) -> jax.Array:
        """Returns what the first part reads."""
        ...

    def middle(self, x: jax.Array, batch: Any, first: Any, /) -> jax.Array:
        """Runs the part that begins with layer `first`."""
        ...

    def end(self, x: jax.Array, batch: Any, /) -> None:
        """Adds the losses, given what the last part leaves."""
        ...

    def part(self, parts: int, /) -> Module:
        """Returns the same model with one of so many parts of its layers."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Side:
    """Losses and summaries, apart: those of the layers, and those of the model's end."""

    layers: Any
    end: Any


@dataclass(frozen=True)
class Stage:
    """The computation of one part for one micro-batch.

    Attributes:
        model: the model with one part of its layers.
        layers: how many layers a part has.
        parts: how many parts there are in all.
        key: the step's random key.
        weights: the weight of each loss in the whole step.
    """

    model: Module
    layers: int
    parts: int
    key: jax.Array
    weights: Arrays

    def forward(
        self, params: Arrays, variables: Arrays, x: jax.Array, micro: Any, index: Any, part: Any
    ) -> tuple[jax.Array, Arrays, Any]:
        """Returns what the part makes of x, its variables after that, and its side outputs."""
        run = self._runner(params, variables, index)
        first, _ = run("begin", micro)
        x = jnp.where(part == 0, first.astype(x.dtype), x)
        y, outputs = run("middle", (x, micro, part * self.layers))
        variables = {path: outputs.variables[path] for path in variables}
        return y.astype(x.dtype), variables, outputs

    def begin(self, params: Arrays, micro: Any) -> jax.Array:
        """Returns what the first part reads."""
        x: jax.Array = self._runner(params, {}, 0)("begin", micro)[0]
        return x

    def objective(
        self, params: Arrays, variables: Arrays, x: jax.Array, micro: Any, index: Any, part: Any
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[Side, Arrays]]:
        """Returns what the part makes of x, and what it adds to the loss of the step.

        Beside it, side outputs and the variables after it.
        """
        y, after, own = self.forward(params, variables, x, micro, index, part)
        _, end = self._runner(params, variables, index)("end", (y, micro))
        is_last = part == self.parts - 1
        added = jnp.where(is_last, total_loss(_losses(end), self.weights), 0.0)
        if own.losses:
            added = added + total_loss(_losses(own), self.weights)
        side = Side((_losses(own), own.summaries), (_losses(end), end.summaries))
        return (y, added), jax.tree.map(jax.lax.stop_gradient, (side, after))

    def _runner(self, params: Arrays, variables: Arrays, index: Any) -> Callable[..., Any]:
        key = jax.random.fold_in(self.key, index)

        def run(method: str, inputs: Any) -> Any:
            return functional(
                self.model,
                params,
                inputs,
                variables=variables,
                key=key,
                training=True,
                losses="return",
                method=method,
            )

        return run


def _losses(outputs: Any) -> dict[str, Loss]:
    return {
        path: Loss(jnp.asarray(loss.total, jnp.float32), jnp.asarray(loss.weight, jnp.float32))
        for path, loss in outputs.losses.items()
    }


def combined(side: Side, is_last: jax.Array) -> tuple[Any, Any]:
    """Returns losses and summaries of all stages: the layers' merged, the end's from the last."""
    layers = jax.tree.map(lambda each: each.across((PIPELINE,)), side.layers, is_leaf=_merges)
    end = jax.tree.map(
        lambda leaf: jax.lax.psum(jnp.where(is_last, leaf, jnp.zeros_like(leaf)), PIPELINE),
        side.end,
    )
    return {**layers[0], **end[0]}, {**layers[1], **end[1]}


def reduced(side: Side, last_rounds: Callable[[Any], Any]) -> Side:
    """Merges what was stacked over turns; the end counts only in a micro-batch's last round."""
    layers = jax.tree.map(lambda each: each.reduce(), side.layers, is_leaf=_merges)
    ends = jax.tree.map(last_rounds, side.end)
    return Side(layers, jax.tree.map(lambda each: each.reduce(), ends, is_leaf=_merges))


def _merges(value: Any) -> bool:
    return hasattr(value, "merge") and hasattr(value, "reduce")
