"""Divides the arrays of a state into groups that fit into the host's memory.

A group is copied from the devices to the host at once. An array that is larger than a group, such
as a stack of layers, is cut into slices along an unsharded axis. So the hosts hold equal shares of
a slice, as they do of the array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class Piece:
    """An array or a slice of one, in a group."""

    path: str
    group: int
    axis: int
    begin: int
    end: int
    is_whole: bool

    @property
    def name(self) -> str:
        """The name of the piece in its group."""
        return self.path if self.is_whole else f"{self.path}[{self.begin}:{self.end}]"


def divide(leaves: Mapping[str, Any], max_bytes: int) -> list[Piece]:
    """Returns the pieces of all arrays, in groups of at most `max_bytes` on any host.

    A piece that cannot be made small enough has its own group. All processes compute the same.

    Args:
        leaves: the arrays by path, or their shapes, dtypes and shardings.
        max_bytes: the bound of a group.
    """
    pieces: list[Piece] = []
    group, used = 0, 0
    for path, leaf in leaves.items():
        size = host_bytes(leaf)
        axis, bounds = _cuts(leaf, size, max_bytes)
        for begin, end in bounds:
            part = size * (end - begin) // max(leaf.shape[axis], 1) if leaf.shape else size
            if used and used + part > max_bytes:
                group, used = group + 1, 0
            pieces.append(Piece(path, group, axis, begin, end, len(bounds) == 1))
            used += part
    return pieces


def host_bytes(leaf: Any) -> int:
    """Returns the largest number of bytes of an array that any host holds, replicas once."""
    itemsize, sharding = leaf.dtype.itemsize, getattr(leaf, "sharding", None)
    if sharding is None:
        return int(math.prod(leaf.shape) * itemsize)
    shards: dict[int, set[Any]] = {}
    for device, index in sharding.devices_indices_map(tuple(leaf.shape)).items():
        shards.setdefault(device.process_index, set()).add(
            tuple((part.start, part.stop) for part in index)
        )
    size: int = math.prod(sharding.shard_shape(tuple(leaf.shape))) * itemsize
    return max(len(indices) for indices in shards.values()) * size


def _cuts(leaf: Any, size: int, max_bytes: int) -> tuple[int, list[tuple[int, int]]]:
    """Returns the axis to cut, and the begin and end of each slice."""
    axis = _axis_to_cut(leaf)
    if size <= max_bytes or axis is None:
        return 0, [(0, leaf.shape[0] if leaf.shape else 0)]
    length = leaf.shape[axis]
    step = max(length * max_bytes // size, 1)
    return axis, [(begin, min(begin + step, length)) for begin in range(0, length, step)]


def _axis_to_cut(leaf: Any) -> int | None:
    """Returns the first axis of more than one element that is not sharded."""
    sharding = getattr(leaf, "sharding", None)
    shape = tuple(leaf.shape)
    shard = shape if sharding is None else sharding.shard_shape(shape)
    return next((axis for axis, n in enumerate(shape) if n > 1 and shard[axis] == n), None)


def cut(leaf: jax.Array, piece: Piece) -> jax.Array:
    """Returns a piece of an array, sharded as the array is."""
    if piece.is_whole:
        return leaf
    sliced: jax.Array = _slice_in_dim(leaf, piece.begin, piece.end - piece.begin, piece.axis)
    return sliced


@jax.jit(static_argnums=(2, 3))
def _slice_in_dim(leaf: jax.Array, begin: Any, length: int, axis: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(leaf, begin, length, axis)
