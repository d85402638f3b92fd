"""Typed side outputs: losses, summaries and named values that leave a model beside its result.

Each type states how it merges over micro-batches, layers and devices, so that a transformation can
carry it without knowing what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp

Array = jax.Array
ArrayLike = jax.typing.ArrayLike


class Loss(NamedTuple):
    """A loss as (sum, weight); normalised once, over the whole step. Merging adds both."""

    total: Array
    weight: Array

    def merge(self, other: Loss) -> Loss:
        """Adds another part of the same loss."""
        return Loss(self.total + other.total, self.weight + other.weight)

    def reduce(self) -> Loss:
        """Adds up along the first axis."""
        return Loss(self.total.sum(0), self.weight.sum(0))

    def across(self, axes: tuple[str, ...]) -> Loss:
        """Adds up over devices."""
        return Loss(jax.lax.psum(self.total, axes), jax.lax.psum(self.weight, axes))

    def value(self) -> Array:
        """Returns the mean; zero where there is no weight at all."""
        return self.total / jnp.where(self.weight == 0, 1, self.weight)


class Summary(Protocol):
    """A figure that merges."""

    def merge(self, other: Self) -> Self:
        """Combines with another part of the same figure."""
        ...

    def reduce(self) -> Self:
        """Combines along the first axis."""
        ...

    def across(self, axes: tuple[str, ...]) -> Self:
        """Combines over devices."""
        ...

    def value(self) -> Array:
        """Returns the figure."""
        ...


class Mean(Loss):
    """A weighted mean; the same arithmetic as a loss."""

    def merge(self, other: Loss) -> Mean:
        """Adds another part."""
        return Mean(*super().merge(other))

    def reduce(self) -> Mean:
        """Adds up along the first axis."""
        return Mean(*super().reduce())

    def across(self, axes: tuple[str, ...]) -> Mean:
        """Adds up over devices."""
        return Mean(*super().across(axes))


class Maximum(NamedTuple):
    """The largest value seen."""

    largest: Array

    def merge(self, other: Maximum) -> Maximum:
        """Keeps the larger."""
        return Maximum(jnp.maximum(self.largest, other.largest))

    def reduce(self) -> Maximum:
        """Keeps the largest along the first axis."""
        return Maximum(self.largest.max(0))

    def across(self, axes: tuple[str, ...]) -> Maximum:
        """Keeps the largest over devices."""
        return Maximum(jax.lax.pmax(self.largest, axes))

    def value(self) -> Array:
        """Returns the largest value."""
        return self.largest


@jax.tree_util.register_dataclass
@dataclass
class SideOutputs:
    """What modules added on the side, by call path."""

    losses: dict[str, Loss] = field(default_factory=dict)
    summaries: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)

    def merge(self, other: SideOutputs) -> None:
        """Takes in what another scope collected."""
        merge_into(self.losses, other.losses)
        merge_into(self.summaries, other.summaries)
        for path, value in other.outputs.items():
            self.add_output(path, value)

    def add_output(self, path: str, value: Any) -> None:
        """Adds a named value; a second one of the same name would hide the first."""
        if path in self.outputs:
            raise ValueError(f"The output {path!r} was added twice; give each its own name.")
        self.outputs[path] = value

    def reduce(self) -> SideOutputs:
        """Combines along a new first axis: losses and summaries merge, outputs stay stacked."""
        return SideOutputs(
            {path: loss.reduce() for path, loss in self.losses.items()},
            {path: summary.reduce() for path, summary in self.summaries.items()},
            dict(self.outputs),
        )

    def across(self, axes: tuple[str, ...]) -> SideOutputs:
        """Combines over the devices of manual mesh axes."""
        if self.outputs:
            raise ValueError(
                f"add_output inside shard_map has no stated reduction: {sorted(self.outputs)}. "
                "Return the value from the function instead."
            )
        return SideOutputs(
            {path: loss.across(axes) for path, loss in self.losses.items()},
            {path: summary.across(axes) for path, summary in self.summaries.items()},
        )


def merge_into(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    """Merges typed values by path."""
    for path, value in source.items():
        target[path] = target[path].merge(value) if path in target else value
