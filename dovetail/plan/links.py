"""How long a collective takes on the links and the network between some devices.

The model is the one of every text on the matter: bytes over bandwidth, and a time for each hop.
What it leaves out are other collectives on the same links at the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.hardware import CHIPS, Chip
from dovetail.targets import Machine

# What one hop costs before the first byte: over a link inside of a pod or a host, over the network.
_LINK_HOP = 1e-6
_NETWORK_HOP = 1e-5


@dataclass(frozen=True)
class Route:
    """How the devices of one group are joined.

    Attributes:
        near: how many devices links join, directly or through each other.
        far: how many such parts only the network joins.
        link_bandwidth: bytes a second into one device over its links to the others.
        network_bandwidth: bytes a second into one device from other parts.
        hops: how many links lie between the farthest two.
        bisection: for an exchange of everybody with everybody, the share of `link_bandwidth` that
            is left, since most of what a device gets passes through others.
    """

    near: int
    far: int
    link_bandwidth: float
    network_bandwidth: float
    hops: int
    bisection: float = 1.0

    @property
    def members(self) -> int:
        """How many devices talk to each other."""
        return self.near * self.far

    def seconds(self, kind: str, size: float) -> float:
        """Returns the time of a collective.

        Args:
            kind: as XLA calls it.
            size: the bytes of the whole that is gathered, added up or exchanged.
        """
        if self.members < 2 or size <= 0:
            return 0.0
        waiting = self.hops * _LINK_HOP + (math.log2(self.far) * _NETWORK_HOP)
        if kind == "all-reduce":  # a reduce-scatter, and then an all-gather
            return 2 * (self._spread(size) + waiting)
        if kind == "collective-permute":
            # Both directions of one side of the torus carry it at best; it goes one way.
            bandwidth = self.network_bandwidth if self.near == 1 else self.link_bandwidth / 2
            return size / bandwidth + waiting / max(1, self.hops)
        if kind in ("all-to-all", "ragged-all-to-all"):
            return self._exchange(size) + waiting
        return self._spread(size) + waiting

    def _spread(self, size: float) -> float:
        """Returns the time in which everybody gets everybody's part, or the other way round."""
        inside = size * (self.near - 1) / self.near / self.link_bandwidth if self.near > 1 else 0.0
        # Each device of a part fetches its share from the others, and all share it by links.
        outside = size * (self.far - 1) / self.far / (self.near * self.network_bandwidth)
        return max(inside, outside if self.far > 1 else 0.0)

    def _exchange(self, size: float) -> float:
        inside = size * (self.near - 1) / self.members / (self.link_bandwidth * self.bisection)
        outside = size * (self.far - 1) / self.far / self.network_bandwidth
        return max(inside if self.near > 1 else 0.0, outside if self.far > 1 else 0.0)


def route_of_devices(machine: Machine, devices: Sequence[Any]) -> Route:
    """Returns how some devices of a machine are joined, from where they stand."""
    if machine.chip.kind == "tpu":
        sides = [
            len({device.coords[index] for device in devices})
            for index in range(len(devices[0].coords))
        ]
        near = Counter(getattr(device, "slice_index", 0) or 0 for device in devices)
        return _torus(machine.chip, len(devices) // len(near), len(near), sides)
    parts = Counter(device.id // _joined(machine) for device in devices)
    return _switched(machine.chip, max(parts.values()), len(parts))


def route_of_axis(machine: Machine, mesh: dict[str, int], axis: str) -> Route:
    """Returns how devices along a mesh axis are joined, where the axes lie as they do by default.

    The last axis has the nearest neighbours.
    """
    names = list(mesh)
    size = mesh[axis]
    inner = math.prod(mesh[name] for name in names[names.index(axis) + 1 :])
    if machine.chip.kind == "tpu":
        outer = inner * size // machine.devices_per_slice
        far = max(1, min(size, outer))
        return _torus(machine.chip, size // far, far, _sides(machine, size // far))
    near = max(1, min(size, _joined(machine) // inner))
    return _switched(machine.chip, near, size // near)


def _joined(machine: Machine) -> int:
    """Returns how many devices links join."""
    return min(machine.chip.linked_chips * machine.chip.devices_per_chip, machine.devices_per_slice)


def _sides(machine: Machine, size: int) -> list[int]:
    """Returns a box of so many chips in a slice: as many whole sides as there are, then a part."""
    shape = [int(side) for side in machine.topology.partition(":")[2].split("x")]
    left = max(1, size // machine.chip.devices_per_chip)
    sides = []
    for side in sorted(shape):
        taken = math.gcd(left, side)
        sides.append(taken)
        left //= taken
    return sides


def _torus(chip: Chip, near: int, far: int, sides: Sequence[int]) -> Route:
    # A ring uses a link in either direction; of two chips there is but one between them.
    links = sum(2 if side > 2 else 1 for side in sides if side > 1) or chip.links
    longest = max(sides)
    return Route(
        near=near,
        far=far,
        link_bandwidth=links * chip.link_bandwidth / chip.devices_per_chip,
        network_bandwidth=network_bandwidth(chip),
        hops=max(1, sum(side // 2 for side in sides)),
        # A message goes a quarter of a ring's way on the average.
        bisection=min(1.0, 4 / longest),
    )


def _switched(chip: Chip, near: int, far: int) -> Route:
    return Route(
        near=near,
        far=far,
        link_bandwidth=chip.interconnect_bandwidth / chip.devices_per_chip or math.inf,
        network_bandwidth=network_bandwidth(chip),
        hops=2,
    )


def network_bandwidth(chip: Chip) -> float:
    """Returns the network's bandwidth into a device; where nobody knows it, the slowest known."""
    known = [
        each.network_bandwidth for each in CHIPS.values() if each.network_bandwidth is not None
    ]
    return (chip.network_bandwidth or min(known)) / chip.devices_per_chip
