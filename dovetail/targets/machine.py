"""A machine to train on: plain data, made from a target's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.hardware import Chip


@dataclass(frozen=True)
class Machine:
    """So many chips of a kind, joined in a known way.

    Attributes:
        name: as the user may write it, such as `2xtpu-v5e-256`.
        kind: what rules match, the name of one slice: `tpu-v5e-256`.
        chip: what it is made of.
        chips: how many, in all slices.
        hosts: how many hosts (processes), in all slices.
        slices: how many parts there are as the name says; only the network joins them.
        platform: what JAX calls the platform when it compiles for a machine that is not there.
        topology: what `jax.experimental.topologies.get_topology_desc` is told of its shape: as the
            name for TPUs (`v5p:4x8x8`, one slice), as `topology` for GPUs (`1x32x8`: slices, hosts,
            GPUs). Empty where JAX can compile for no such machine.
        topology_options: what else it must be told.
        any_number: whether it stands for however many devices are here (`cpu`).
    """

    name: str
    kind: str
    chip: Chip
    chips: int
    hosts: int
    slices: int = 1
    platform: str = ""
    topology: str = ""
    topology_options: Mapping[str, Any] = field(default_factory=dict)
    any_number: bool = False

    @property
    def devices(self) -> int:
        """The number of JAX devices."""
        return self.chips * self.chip.devices_per_chip

    @property
    def devices_per_slice(self) -> int:
        """The number of JAX devices in a slice.

        Links join all of them on TPUs. Elsewhere they join a host or a rack, and the network the
        rest: `chip.linked_chips` says how many.
        """
        return self.devices // self.slices

    @property
    def memory_per_device(self) -> float:
        """The bytes that each JAX device has for its arrays."""
        if self.chip.kind == "cpu":  # virtual devices share the machine
            return self.chip.memory_bytes / self.devices
        return self.chip.memory_per_device

    @property
    def memory_for_programs(self) -> float:
        """The bytes of that which a program may take; on some chips the compiler keeps a part."""
        given = self.chip.program_memory_bytes
        return self.memory_per_device if given is None else given / self.chip.devices_per_chip

    @property
    def usd_per_hour(self) -> float | None:
        """The list price of all chips for an hour; None where it is not known."""
        price = self.chip.price
        return None if price is None else self.chips * price.usd_per_chip_hour

    def __str__(self) -> str:
        """Says what it is made of."""
        parts = [f"{self.chips} x {self.chip.name}"]
        if self.devices != self.chips:
            parts.append(f"{self.devices} devices")
        if self.chip.kind != "cpu":
            parts.append(f"{self.hosts} host{'s' if self.hosts > 1 else ''}")
        if self.slices > 1:
            parts.append(f"{self.slices} slices")
        return ", ".join(parts)
