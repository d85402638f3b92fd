"""Reorders the devices under the same arrays, so that another device computes each shard.

A position is an index into the devices of a mesh, row by row. An order gives the device for each
position, as an index into the mesh of the run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Order = tuple[int, ...]


def rolled(mesh: Mesh) -> Order:
    """Returns the order in which every device does its neighbour's work on the longest axis.

    Neighbours of a ring stay neighbours, so collectives run over the same links. A longer axis
    tells more about which device is at fault.
    """
    axis = int(np.argmax(mesh.devices.shape))
    positions = np.arange(mesh.size).reshape(mesh.devices.shape)
    return tuple(np.roll(positions, -1, axis).flatten().tolist())


def cycled(size: int, devices: Sequence[int]) -> Order:
    """Returns the order in which some devices swap their work, and all others keep it."""
    order = list(range(size))
    for device, next_device in zip(devices, [*devices[1:], devices[0]], strict=True):
        order[device] = next_device
    return tuple(order)


def mesh_in_order(mesh: Mesh, order: Order) -> Mesh:
    """Returns a mesh of the same shape with its devices in another order."""
    devices = mesh.devices.flatten()[list(order)].reshape(mesh.devices.shape)
    return Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)


def copy_in_order(tree: Any, order: Order) -> Any:
    """Copies arrays that are on one mesh to its devices in another order.

    Every device sends its own shards, so the copies of a replicated array stay apart. With several
    processes, all call it.
    """
    leaves, treedef = jax.tree.flatten(tree)
    mesh = leaves[0].sharding.mesh
    specs = tuple(leaf.sharding.spec for leaf in leaves)
    # Virtual CPU devices may deadlock if another program with collectives is dispatched meanwhile.
    moved = jax.block_until_ready(_permutation(mesh, specs, order)(*leaves))
    there = mesh_in_order(mesh, order)
    placed = [_as_placed(new, old.sharding, there) for new, old in zip(moved, leaves, strict=True)]
    return jax.tree.unflatten(treedef, placed)


def _as_placed(moved: jax.Array, before: NamedSharding, mesh: Mesh) -> jax.Array:
    """Returns the received shards as an array on the other mesh."""
    sharding = NamedSharding(mesh, before.spec)
    shards = [shard.data for shard in moved.addressable_shards]
    array = jax.make_array_from_single_device_arrays(moved.shape, sharding, shards)
    if before.memory_kind in (None, moved.sharding.memory_kind):
        return array
    return jax.device_put(array, NamedSharding(mesh, before.spec, memory_kind=before.memory_kind))


@functools.lru_cache(maxsize=16)
def _permutation(
    mesh: Mesh, specs: tuple[PartitionSpec, ...], order: Order
) -> Callable[..., tuple[jax.Array, ...]]:
    """Returns the program that sends the shards of each position to its new device."""
    pairs = list(enumerate(order))

    def send(*shards: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(jax.lax.ppermute(shard, mesh.axis_names, pairs) for shard in shards)

    def of_arrays(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        here = [jax.device_put(array, jax.memory.Space.Device) for array in arrays]
        mapped = jax.shard_map(send, mesh=mesh, in_specs=specs, out_specs=specs, check_vma=False)
        sent: tuple[jax.Array, ...] = mapped(*here)
        return sent

    program: Callable[..., tuple[jax.Array, ...]] = jax.jit(of_arrays)
    return program
