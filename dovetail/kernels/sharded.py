"""Kernels under a mesh: `shard_map` by logical axes.

XLA partitions its own operations. A kernel is opaque to it: XLA would refuse it, or all-gather
everything for it. So the caller names the logical axes of the arrays, and the kernel runs inside a
`shard_map`, on the shard of each device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from dovetail.parallel import current_placement

Axes = tuple[str | tuple[str, ...] | None, ...]
"""The logical name of each axis; with several, the mesh axes of all of them shard it."""


def mesh_axes(*logical: str) -> tuple[str, ...]:
    """Returns the mesh axes over which these logical axes are sharded; none without a mesh."""
    placement = current_placement()
    return placement.mesh_axes(*logical) if placement else ()


def num_shards(*logical: str) -> int:
    """Returns over how many devices these logical axes are sharded together."""
    placement = current_placement()
    return placement.num_shards(*logical) if placement else 1


def is_sharded() -> bool:
    """Returns whether XLA may shard arrays over several devices here."""
    placement = current_placement()
    if placement is None:
        return False
    manual = _manual_axes()
    return any(size > 1 for name, size in placement.mesh.shape.items() if name not in manual)


def context_mesh() -> Any:
    """Returns the mesh for a `shard_map` here; None without one."""
    if _manual_axes():
        return jax.sharding.get_abstract_mesh()
    placement = current_placement()
    return placement.mesh if placement else None


def indivisible(what: str, size: int, *logical: str) -> str | None:
    """Returns why a size does not divide over the shards of logical axes, or None if it does."""
    count = num_shards(*logical)
    return f"{size} {what} do not divide over {count} devices" if size % count else None


class GatheredShards:
    """All-gathers sharded parameters inside the body of a `shard_map`.

    A parameter that enters a `shard_map` replicated gets an all-reduced gradient on every device.
    The gradient of one that is all-gathered inside is reduce-scattered to the devices that hold its
    shards.
    """

    def __init__(self, manual_axes: Collection[str], keep_sharded: Collection[str] = ()) -> None:
        """Takes the axes of the `shard_map`, and those of them along which nothing is gathered."""
        self.manual_axes, self.keep_sharded = frozenset(manual_axes), frozenset(keep_sharded)

    def spec(self, axes: Sequence[str | None], shape: Sequence[int]) -> PartitionSpec:
        """Returns the sharding of an array over these axes; replicated where it does not divide."""
        return _spec(axes, shape, self.manual_axes)

    def gather(
        self, shard: jax.Array, axes: Sequence[str | None], spec: PartitionSpec
    ) -> jax.Array:
        """All-gathers a shard; along mesh axes that XLA partitions, it stays sharded."""
        along = {
            index: tuple(name for name in _names(entry) if name not in self.keep_sharded)
            for index, entry in enumerate(spec)
        }
        along = {index: names for index, names in along.items() if names}
        return _all_gather(shard, axes, along) if along else shard


def logical_shard_map(
    function: Callable[..., Any], in_axes: Sequence[Any], out_axes: Axes
) -> Callable[..., Any]:
    """Returns a function that runs on each device's shard of its arrays.

    An array is replicated along an axis without a name (and all-gathered if it was sharded). Along
    mesh axes that shard none of the arrays, every device computes the same.

    Args:
        function: from arrays to an array; it sees the shapes of one shard. Inside of it,
            `mesh_axes()` returns nothing, so ask for axes of collectives outside.
        in_axes: the logical axes of each argument, or a tree of them; an argument may be None.
        out_axes: the logical axes of the result.
    """
    mesh = context_mesh()
    if mesh is None or mesh.size == 1:
        return function
    # Axes of size 1 are manual, too, because a kernel does not compile in a region that XLA may
    # partition. An outer shard_map may have some of the axes already.
    auto = frozenset(mesh.axis_names) - _manual_axes()
    if not auto:
        return function

    def spec(axes: Axes) -> PartitionSpec:
        return PartitionSpec(*(mesh_axes(*_names(entry)) or None for entry in axes))

    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=tuple(
            jax.tree.map(spec, axes, is_leaf=lambda leaf: isinstance(leaf, tuple))
            for axes in in_axes
        ),
        out_specs=spec(out_axes),
        axis_names=auto,
        check_vma=False,  # kernels do not declare along which axes their results vary
    )


def _spec(
    axes: Sequence[str | None], shape: Sequence[int], along: Collection[str]
) -> PartitionSpec:
    """Returns the sharding of an array over some of the mesh axes that XLA partitions here."""
    placement = current_placement()
    if placement is None:
        return PartitionSpec()
    entries: list[tuple[str, ...] | None] = []
    sharded = placement.rules.mesh_axes(axes, placement.mesh, _manual_axes())
    for size, names in zip(shape, sharded, strict=True):
        inside = tuple(name for name in names if name in along)
        divides = size % math.prod(placement.mesh.shape[name] for name in inside) == 0
        entries.append(inside if inside and divides else None)
    return PartitionSpec(*entries)


def _all_gather(
    shard: jax.Array, axes: Sequence[str | None], along: dict[int, tuple[str, ...]]
) -> jax.Array:
    """All-gathers axes of an array, by number, along manual mesh axes."""

    def gather(shard: jax.Array) -> jax.Array:
        for index, names in along.items():
            shard = jax.lax.all_gather(shard, names, axis=index, tiled=True)
        return shard

    mesh = context_mesh()
    auto = _spec(axes, shard.shape, mesh.axis_names)
    if not any(auto):
        return gather(shard)
    # Manual along the other axes, too: before a manual collective XLA would all-gather whatever it
    # partitions there itself.
    return jax.shard_map(
        gather,
        mesh=mesh,
        in_specs=auto,
        out_specs=auto,
        axis_names=frozenset(mesh.axis_names) - _manual_axes(),
        check_vma=False,
    )(shard)


def _manual_axes() -> frozenset[str]:
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def _names(entry: Any) -> tuple[str, ...]:
    """Returns the names of one entry: none, one or several."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ())
