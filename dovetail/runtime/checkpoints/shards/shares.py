"""Which process writes which shards: each once, spread evenly over the processes that have it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax


class Part(NamedTuple):
    """A part of an array that a process writes."""

    path: str
    start: tuple[int, ...]
    device: Any


def shares(leaves: Mapping[str, jax.Array]) -> dict[int, list[Part]]:
    """Returns the parts that each process writes. All processes compute the same.

    A shard that several processes have, as replicas, goes to the one with the fewest bytes.
    """
    written: dict[int, int] = {}
    result: dict[int, list[Part]] = {}
    for path, leaf in leaves.items():
        size = math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for start, devices in _holders(leaf).items():
            device = min(devices, key=lambda d: (written.get(d.process_index, 0), d.id))
            owner = device.process_index
            written[owner] = written.get(owner, 0) + size
            result.setdefault(owner, []).append(Part(path, start, device))
    return result


def _holders(leaf: jax.Array) -> dict[tuple[int, ...], list[Any]]:
    """Returns the devices that hold each shard, by the index at which it starts."""
    holders: dict[tuple[int, ...], list[Any]] = {}
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        holders.setdefault(tuple(part.start or 0 for part in index), []).append(device)
    return holders


class ShareCache:
    """The parts that this process writes: the same for every save of a run."""

    def __init__(self) -> None:
        """Knows no state yet."""
        self._known: tuple[Any, list[Part]] | None = None

    def parts(self, leaves: Mapping[str, jax.Array], process: int) -> list[Part]:
        """Returns the parts of a state that a process writes."""
        key = [(path, leaf.shape, leaf.sharding) for path, leaf in leaves.items()]
        if self._known is None or self._known[0] != key:
            self._known = (key, shares(leaves).get(process, []))
        return self._known[1]
