"""Typed side outputs of a model: losses, summaries and named values.

Each type defines its reduction over microbatches (`merge`), layers (`reduce`) and devices
(`all_reduce`), and its `value`, so that transformations carry it without knowing what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

Array = jax.Array
ArrayLike = jax.typing.ArrayLike


class Loss(NamedTuple):
    """A loss as (sum, weight), normalized once over the global step. Merging adds both."""

    total: Array
    weight: Array

    def merge(self, other: Self) -> Self:
        """Adds the loss of another microbatch."""
        return type(self)(self.total + other.total, self.weight + other.weight)

    def reduce(self) -> Self:
        """Sums over the first axis."""
        return type(self)(self.total.sum(0), self.weight.sum(0))

    def all_reduce(self, axes: tuple[str, ...]) -> Self:
        """Sums over mesh axes."""
        return type(self)(jax.lax.psum(self.total, axes), jax.lax.psum(self.weight, axes))

    def value(self) -> Array:
        """Returns the mean, or zero if the weight is zero."""
        return self.total / jnp.where(self.weight == 0, 1, self.weight)


class Mean(Loss):
    """A weighted mean, with the reduction of a loss."""


class Maximum(NamedTuple):
    """A running maximum."""

    largest: Array

    def merge(self, other: Maximum) -> Maximum:
        """Returns the larger."""
        return Maximum(jnp.maximum(self.largest, other.largest))

    def reduce(self) -> Maximum:
        """Returns the maximum over the first axis."""
        return Maximum(self.largest.max(0))

    def all_reduce(self, axes: tuple[str, ...]) -> Maximum:
        """Returns the maximum over mesh axes."""
        return Maximum(jax.lax.pmax(self.largest, axes))

    def value(self) -> Array:
        """Returns the maximum."""
        return self.largest


@jax.tree_util.register_dataclass
@dataclass
class SideOutputs:
    """The side outputs of a scope, by call path."""

    losses: dict[str, Loss] = field(default_factory=dict)
    summaries: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)

    def merge(self, other: SideOutputs) -> None:
        """Merges the side outputs of another scope."""
        merge_into(self.losses, other.losses)
        merge_into(self.summaries, other.summaries)
        for path, value in other.outputs.items():
            self.add_output(path, value)

    def add_output(self, path: str, value: Any) -> None:
        """Adds a named value; the same name twice is an error."""
        if path in self.outputs:
            raise ValueError(f"The output {path!r} was added twice; give each its own name.")
        self.outputs[path] = value

    def reduce(self) -> SideOutputs:
        """Reduces over a new first axis: losses and summaries merge, outputs stay stacked."""
        return SideOutputs(
            {path: loss.reduce() for path, loss in self.losses.items()},
            {path: summary.reduce() for path, summary in self.summaries.items()},
            dict(self.outputs),
        )

    def all_reduce(self, axes: tuple[str, ...]) -> SideOutputs:
        """Reduces over manual mesh axes."""
        if self.outputs:
            raise ValueError(
                f"add_output inside shard_map has no reduction: {sorted(self.outputs)}. "
                "Return the value from the function instead."
            )
        return SideOutputs(
            {path: loss.all_reduce(axes) for path, loss in self.losses.items()},
            {path: summary.all_reduce(axes) for path, summary in self.summaries.items()},
        )


def merge_into(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    """Merges typed values by path."""
    for path, value in source.items():
        target[path] = target[path].merge(value) if path in target else value
