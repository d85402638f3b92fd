"""Kernels under a mesh: one wrapping that gives every device its own part of a call.

XLA splits its own operations over devices by itself. A kernel is a closed box to it, which it would
refuse, or gather everything for. So whoever calls one says by logical axes how its arrays are
split, and the kernel runs inside a `shard_map`, on each device's part alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from dovetail.parallel import current_placement

Axes = tuple[str | tuple[str, ...] | None, ...]
"""The logical name of each axis; several where what splits any of them splits this one."""


def mesh_axes(*logical: str) -> tuple[str, ...]:
    """Returns the mesh axes that split any of these logical axes here; none without a mesh."""
    placement = current_placement()
    return placement.mesh_axes(*logical) if placement else ()


def parts(*logical: str) -> int:
    """Returns over how many devices these logical axes are split together."""
    placement = current_placement()
    return placement.parts(*logical) if placement else 1


def is_split() -> bool:
    """Returns whether XLA may split arrays over several devices here."""
    placement = current_placement()
    if placement is None:
        return False
    manual = _manual_axes()
    return any(size > 1 for name, size in placement.mesh.shape.items() if name not in manual)


def context_mesh() -> Any:
    """Returns the mesh that a `shard_map` here is over; None without one."""
    if _manual_axes():
        return jax.sharding.get_abstract_mesh()
    placement = current_placement()
    return placement.mesh if placement else None


def indivisible(what: str, size: int, *logical: str) -> str | None:
    """Returns why a size cannot be split as logical axes are here, or None where it can."""
    count = parts(*logical)
    return f"{size} {what} do not divide over {count} devices" if size % count else None


class GatheredParts:
    """Arrays as they lie along some mesh axes, gathered for the body of a `shard_map` over those.

    What comes into one whole has a gradient that is added up whole, on every device. That of what
    is gathered inside goes straight to those that hold a part.
    """

    def __init__(self, along: Collection[str], apart: Collection[str] = ()) -> None:
        """Takes the axes of the `shard_map`, and those of them along which parts stay apart."""
        self.along, self.apart = frozenset(along), frozenset(apart)

    def spec(self, axes: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
        """Returns how an array lies here; whole where it does not divide."""
        return _lies(axes, shape, self.along)

    def seen(self, part: jax.Array, axes: Sequence[str | None], spec: PartitionSpec) -> jax.Array:
        """Gathers a part; along the axes of the mesh that XLA splits, it stays as it lies."""
        along = {
            index: tuple(name for name in _names(entry) if name not in self.apart)
            for index, entry in enumerate(spec)
        }
        along = {index: names for index, names in along.items() if names}
        return _gathered(part, axes, along) if along else part


def on_each_device(
    function: Callable[..., Any], in_axes: Sequence[Axes], out_axes: Axes
) -> Callable[..., Any]:
    """Returns a function that runs on each device's part of its arrays.

    An array is whole along an axis that has no name, and gathered if it was not. Along mesh axes
    that split none of the arrays every device computes the same.

    Args:
        function: from arrays to an array; it sees the sizes of one part. What else it needs of
            other parts it must ask for, by `mesh_axes()` as they were outside of it.
        in_axes: the logical axes of each argument; an argument may be None.
        out_axes: the logical axes of the result.
    """
    mesh = context_mesh()
    if mesh is None or mesh.size == 1:
        return function
    # Those of one device too: a kernel cannot be compiled while XLA might still split something
    # around it, and around it there may be a shard_map over some axes alone.
    left = frozenset(mesh.axis_names) - _manual_axes()
    if not left:
        return function

    def spec(axes: Axes) -> PartitionSpec:
        return PartitionSpec(*(mesh_axes(*_names(entry)) or None for entry in axes))

    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=tuple(spec(axes) for axes in in_axes),
        out_specs=spec(out_axes),
        axis_names=left,
        check_vma=False,  # kernels do not say along which axes their results differ
    )


def _lies(
    axes: Sequence[str | None], shape: Sequence[int], along: Collection[str]
) -> PartitionSpec:
    """Returns how an array is split over some of the mesh axes that are left here."""
    placement = current_placement()
    if placement is None:
        return PartitionSpec()
    entries: list[tuple[str, ...] | None] = []
    split = placement.rules.mesh_axes(axes, placement.mesh, _manual_axes())
    for size, names in zip(shape, split, strict=True):
        inside = tuple(name for name in names if name in along)
        divides = size % math.prod(placement.mesh.shape[name] for name in inside) == 0
        entries.append(inside if inside and divides else None)
    return PartitionSpec(*entries)


def _gathered(
    part: jax.Array, axes: Sequence[str | None], along: dict[int, tuple[str, ...]]
) -> jax.Array:
    """Gathers axes of an array, by number, along mesh axes that are split by hand here."""

    def gather(part: jax.Array) -> jax.Array:
        for index, names in along.items():
            part = jax.lax.all_gather(part, names, axis=index, tiled=True)
        return part

    mesh = context_mesh()
    left = _lies(axes, part.shape, mesh.axis_names)
    if not any(left):
        return gather(part)
    # By hand along the others, too: what XLA splits there by itself it would put together first,
    # for a collective of ours.
    whole: jax.Array = jax.shard_map(
        gather,
        mesh=mesh,
        in_specs=left,
        out_specs=left,
        axis_names=frozenset(mesh.axis_names) - _manual_axes(),
        check_vma=False,
    )(part)
    return whole


def _manual_axes() -> frozenset[str]:
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def _names(entry: Any) -> tuple[str, ...]:
    """Returns the names of one entry: none, one or several."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ())
