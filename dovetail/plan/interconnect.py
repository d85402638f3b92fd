"""The time of a collective over ICI, NVLink or the data-center network (DCN).

The usual model: bytes over bandwidth, plus a latency per hop. It ignores other collectives that use
the same links at the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.hardware import CHIPS, Chip
from dovetail.targets import Machine

# Seconds of latency per hop.
_LINK_LATENCY = 1e-6
_NETWORK_LATENCY = 1e-5


@dataclass(frozen=True)
class GroupInterconnect:
    """The links between the devices of one group.

    A domain is a set of devices that ICI or NVLink joins; only the DCN joins domains.

    Attributes:
        domain_size: devices of the group in one domain.
        domains: how many domains the group spans.
        link_bandwidth: bytes/s into one device over its links to the others.
        network_bandwidth: bytes/s into one device over the DCN.
        hops: links between the two devices that are farthest apart.
        all_to_all_share: the share of `link_bandwidth` that an all-to-all reaches, since most
            messages pass through other devices.
    """

    domain_size: int
    domains: int
    link_bandwidth: float
    network_bandwidth: float
    hops: int
    all_to_all_share: float = 1.0

    @property
    def devices(self) -> int:
        """The number of devices of the group."""
        return self.domain_size * self.domains

    def seconds(self, kind: str, size: float) -> float:
        """Returns the time of a collective.

        Args:
            kind: XLA's name, such as `all-gather`.
            size: the unsharded bytes that are gathered, reduced or sent.
        """
        if self.devices < 2 or size <= 0:
            return 0.0
        latency = self.hops * _LINK_LATENCY + (math.log2(self.domains) * _NETWORK_LATENCY)
        if kind == "all-reduce":  # a reduce-scatter and an all-gather
            return 2 * (self._all_gather(size) + latency)
        if kind == "collective-permute":
            # Both directions of one side of the torus carry it at best; it goes one way.
            bandwidth = self.network_bandwidth if self.domain_size == 1 else self.link_bandwidth / 2
            return size / bandwidth + latency / max(1, self.hops)
        if kind in ("all-to-all", "ragged-all-to-all"):
            return self._all_to_all(size) + latency
        return self._all_gather(size) + latency

    def _all_gather(self, size: float) -> float:
        """Returns the time of an all-gather, or of a reduce-scatter, which is its reverse."""
        near, far = self.domain_size, self.domains
        inside = size * (near - 1) / near / self.link_bandwidth if near > 1 else 0.0
        # Each device of a domain fetches its share from other domains; links spread it.
        outside = size * (far - 1) / far / (near * self.network_bandwidth)
        return max(inside, outside if far > 1 else 0.0)

    def _all_to_all(self, size: float) -> float:
        near, far = self.domain_size, self.domains
        inside = size * (near - 1) / self.devices / (self.link_bandwidth * self.all_to_all_share)
        outside = size * (far - 1) / far / self.network_bandwidth
        return max(inside if near > 1 else 0.0, outside if far > 1 else 0.0)


def group_interconnect(machine: Machine, devices: Sequence[Any]) -> GroupInterconnect:
    """Returns the links between some devices of a machine, from their coordinates."""
    if machine.chip.platform == "tpu":
        sides = [
            len({device.coords[index] for device in devices})
            for index in range(len(devices[0].coords))
        ]
        slices = {getattr(device, "slice_index", 0) or 0 for device in devices}
        return _torus(machine.chip, len(devices) // len(slices), len(slices), sides)
    domains = Counter(device.id // _domain_devices(machine) for device in devices)
    return _switched(machine.chip, max(domains.values()), len(domains))


def axis_interconnect(machine: Machine, mesh: dict[str, int], axis: str) -> GroupInterconnect:
    """Returns the links along a mesh axis in the default device order: the last axis is nearest."""
    names = list(mesh)
    size = mesh[axis]
    inner = math.prod(mesh[name] for name in names[names.index(axis) + 1 :])
    if machine.chip.platform == "tpu":
        slices = max(1, min(size, inner * size // machine.devices_per_slice))
        return _torus(machine.chip, size // slices, slices, _box(machine, size // slices))
    near = max(1, min(size, _domain_devices(machine) // inner))
    return _switched(machine.chip, near, size // near)


def network_bandwidth(chip: Chip) -> float:
    """Returns the DCN bytes/s into a device; the slowest known one if that of the chip is not."""
    known = [
        each.network_bandwidth for each in CHIPS.values() if each.network_bandwidth is not None
    ]
    return (chip.network_bandwidth or min(known)) / chip.devices_per_chip


def _domain_devices(machine: Machine) -> int:
    return min(machine.chip.linked_chips * machine.chip.devices_per_chip, machine.devices_per_slice)


def _box(machine: Machine, size: int) -> list[int]:
    """Returns the sides of a box of devices in a slice: full sides first, then part of one."""
    shape = [int(side) for side in machine.topology.partition(":")[2].split("x")]
    left = max(1, size // machine.chip.devices_per_chip)
    sides = []
    for side in sorted(shape):
        taken = math.gcd(left, side)
        sides.append(taken)
        left //= taken
    return sides


def _torus(chip: Chip, near: int, far: int, sides: Sequence[int]) -> GroupInterconnect:
    # A ring uses a link in either direction; between two chips there is only one.
    links = sum(2 if side > 2 else 1 for side in sides if side > 1) or chip.links
    longest = max(sides)
    return GroupInterconnect(
        domain_size=near,
        domains=far,
        link_bandwidth=links * chip.link_bandwidth / chip.devices_per_chip,
        network_bandwidth=network_bandwidth(chip),
        hops=max(1, sum(side // 2 for side in sides)),
        # A message travels a quarter of a ring on average.
        all_to_all_share=min(1.0, 4 / longest),
    )


def _switched(chip: Chip, near: int, far: int) -> GroupInterconnect:
    return GroupInterconnect(
        domain_size=near,
        domains=far,
        link_bandwidth=chip.interconnect_bandwidth / chip.devices_per_chip or math.inf,
        network_bandwidth=network_bandwidth(chip),
        hops=2,
    )
