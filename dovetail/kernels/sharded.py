"""Kernels under a mesh: one wrapping that gives every device its own part of a call.

XLA splits its own operations over devices by itself. A kernel is a closed box to it, which it would
refuse, or gather everything for. So whoever calls one says by logical axes how its arrays are
split, and the kernel runs inside a `shard_map`, on each device's part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def _manual_axes() -> frozenset[str]:
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def _names(entry: Any) -> tuple[str, ...]:
    """Returns the names of one entry: none, one or several."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ())
