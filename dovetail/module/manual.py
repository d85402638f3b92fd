"""State under a shard_map: each device's part of an array comes in, and the body may see more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax
from jax.sharding import PartitionSpec

from dovetail.module.context import Arrays, Frame
from dovetail.module.module import Module
from dovetail.module.specs import Axes, Spec, in_dtype


class Parts(Protocol):
    """How arrays go into a shard_map, by their logical axes."""

    def spec(self, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
        """Returns how an array is split; along axes that it does not name it comes in whole."""
        ...

    def seen(self, part: jax.Array, axes: Axes, spec: PartitionSpec) -> jax.Array:
        """Returns what the body sees of a part, in the type of number that it is read in."""
        ...


class Whole:
    """All of every array, on every device."""

    def spec(self, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
        """Splits nothing."""
        return PartitionSpec()

    def seen(self, part: jax.Array, axes: Axes, spec: PartitionSpec) -> jax.Array:
        """Returns it as it is."""
        return part


@dataclass(frozen=True)
class Crossing:
    """The arrays that cross into one shard_map.

    Attributes:
        parts: how they do.
        axes: the logical axes of each, by path; of a loop around it, there is no axis left here.
        specs: how each is split.
        dtypes: the type of number that each is read in; None: its own.
    """

    parts: Parts
    axes: dict[str, Axes]
    specs: dict[str, PartitionSpec]
    dtypes: dict[str, str | None]

    @classmethod
    def of(cls, frame: Frame, layer: Module, arrays: Arrays, parts: Parts) -> Crossing:
        """Asks how each array of a module and all below it is split."""
        tree = frame.scope.tree
        names = {path: spec.axes for path, spec in tree.specs(Spec, layer).items()}
        axes = {path: names[path][-value.ndim :][: value.ndim] for path, value in arrays.items()}
        specs = {path: parts.spec(axes[path], value.shape) for path, value in arrays.items()}
        return cls(parts, axes, specs, tree.read_dtypes(layer))

    def seen(self, arrays: Arrays) -> Arrays:
        """Returns what the body sees of the parts that came in."""
        # In the type that they are read in: where the body computes in bfloat16, half as much is
        # gathered.
        return {
            path: self.parts.seen(
                in_dtype(part, self.dtypes[path]), self.axes[path], self.specs[path]
            )
            for path, part in arrays.items()
        }
