"""Assigns each shard to one of the processes that have it, with an even load."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax

_MAX_SLICE_BYTES = 256 * 2**20
"""A shard of stacked layers may have many gigabytes; it is copied, written and read in slices."""


class ShardSlice(NamedTuple):
    """A slice of a device's shard of an array, along its longest axis."""

    path: str
    start: tuple[int, ...]
    """Where it begins in the global array."""
    device: Any
    axis: int
    begin: int
    end: int
    """The range of the slice in the shard."""


def assign_shards(
    leaves: Mapping[str, jax.Array], max_bytes: int = _MAX_SLICE_BYTES
) -> dict[int, list[ShardSlice]]:
    """Returns the slices that each process writes. All processes compute the same.

    A replicated shard goes to the process with the fewest bytes.
    """
    written: dict[int, int] = {}
    result: dict[int, list[ShardSlice]] = {}
    for path, leaf in leaves.items():
        shape = leaf.sharding.shard_shape(leaf.shape)
        size = math.prod(shape) * leaf.dtype.itemsize
        for start, devices in _holders(leaf).items():
            device = min(devices, key=lambda d: (written.get(d.process_index, 0), d.id))
            owner = device.process_index
            written[owner] = written.get(owner, 0) + size
            slices = _slices(path, start, device, shape, size, max_bytes)
            result.setdefault(owner, []).extend(slices)
    return result


def _slices(
    path: str, start: tuple[int, ...], device: Any, shape: tuple[int, ...], size: int, most: int
) -> Iterator[ShardSlice]:
    """Cuts a shard into slices of at most so many bytes, as far as one axis allows."""
    axis = max(range(len(shape)), key=lambda a: shape[a], default=0)
    length = shape[axis] if shape else 1
    count = min(-(-size // most), length) if size else 1
    bounds = [length * number // count for number in range(count + 1)]
    for begin, end in itertools.pairwise(bounds):
        where = tuple(s + begin if a == axis else s for a, s in enumerate(start))
        yield ShardSlice(path, where, device, axis, begin, end)


def _holders(leaf: jax.Array) -> dict[tuple[int, ...], list[Any]]:
    """Returns the devices that hold each shard, by the index at which it starts."""
    holders: dict[tuple[int, ...], list[Any]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        holders.setdefault(tuple(part.start or 0 for part in index), []).append(device)
    return holders


class ShardAssignment:
    """Caches the slices that this process writes, which are the same for every save of a run."""

    def __init__(self) -> None:
        """Starts with an empty cache."""
        self._known: tuple[Any, list[ShardSlice]] | None = None

    def slices(
        self, leaves: Mapping[str, jax.Array], process: int, max_host_bytes: int
    ) -> list[ShardSlice]:
        """Returns the slices of a state that a process writes.

        Several are in the host's memory at a time, so each has at most 1/4 of `max_host_bytes`.
        """
        key = [(path, leaf.shape, leaf.sharding) for path, leaf in leaves.items()]
        if self._known is None or self._known[0] != key:
            most = min(max(max_host_bytes // 4, 1), _MAX_SLICE_BYTES)
            self._known = (key, assign_shards(leaves, most).get(process, []))
        return self._known[1]
