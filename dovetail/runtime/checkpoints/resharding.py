"""Shardings for reading a checkpoint, and resharding to the shardings of the state.

Two kinds of arrays are read with another sharding than the state has:

- Arrays that are replicated over processes, as with data parallelism. Every process would read the
  same bytes from the storage. Instead each reads its own shard, and they all-gather.
- Arrays that were saved in slices along an axis that is sharded now, as by a pipeline. A slice may
  not divide over the devices, and writing it into such an array is a collective. So another axis is
  sharded while the array is read. If no axis divides, the array is replicated meanwhile.

Resharding is a collective. It starts after all processes have read their arrays; otherwise one that
fails would leave the others waiting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def read_sharding(struct: jax.ShapeDtypeStruct, sliced_axis: int | None) -> Any:
    """Returns the sharding in which to read an array.

    Args:
        struct: the array of the state, with its sharding.
        sliced_axis: the axis along which it was saved in slices, if it was.
    """
    sharding = struct.sharding
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        return sharding
    mesh = sharding.mesh
    before = _axes_by_dimension(sharding.spec, len(struct.shape))
    axes = list(before)
    unplaced: list[str] = []
    if sharding.memory_kind in (None, mesh.devices.flat[0].default_memory().kind):
        # Offloaded arrays are not gathered: they may not fit on the devices.
        unplaced = [axis for axis in _process_axes(mesh) if axis not in sum(axes, ())]
    if sliced_axis is not None:
        unplaced, axes[sliced_axis] = [*axes[sliced_axis], *unplaced], ()
    for axis in unplaced:
        for dimension, size in enumerate(struct.shape):
            shards = math.prod(mesh.shape[each] for each in (*axes[dimension], axis))
            if dimension != sliced_axis and size % shards == 0:
                axes[dimension] = (*axes[dimension], axis)
                break
    if axes == before:
        return sharding
    return NamedSharding(mesh, PartitionSpec(*axes), memory_kind=sharding.memory_kind)


def reshard(
    arrays: Mapping[str, jax.Array], like: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Returns the arrays with the shardings of `like`. All processes call this together."""
    result = dict(arrays)
    wanted = {
        path: like[path].sharding
        for path, array in arrays.items()
        if array.sharding != like[path].sharding
    }
    result |= jax.device_put({path: arrays[path] for path in wanted}, wanted)
    return result


def _axes_by_dimension(spec: PartitionSpec, dimensions: int) -> list[tuple[str, ...]]:
    """Returns the mesh axes over which each dimension is sharded."""
    entries = [*spec, *[None] * (dimensions - len(spec))]
    return [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries]


def _process_axes(mesh: Mesh) -> list[str]:
    """Returns the mesh axes along which devices belong to different processes."""
    processes = np.vectorize(lambda device: device.process_index, otypes=[int])(mesh.devices)
    return [
        name
        for number, name in enumerate(mesh.axis_names)
        if (processes != processes.take([0], axis=number)).any()
    ]
