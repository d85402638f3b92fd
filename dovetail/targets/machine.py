"""A machine to train on, as plain data. `parse_target` makes it from a target's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dovetail.hardware import Chip
from dovetail.utils import plural


@dataclass(frozen=True)
class Machine:
    """Chips of one kind in slices and hosts.

    Attributes:
        name: the target's name, such as `2xtpu-v5e-256`.
        kind: the name of one slice, which rules match: `tpu-v5e-256`.
        chip: the catalogue entry.
        chips: chips of all slices.
        hosts: hosts (processes) of all slices.
        slices: TPU slices, which only the data-center network (DCN) joins. A GPU cluster is one.
        platform: the platform of `jax.experimental.topologies.get_topology_desc`.
        topology: the shape in the form of `get_topology_desc`: the name of one slice for TPUs
            (`v5p:4x8x8`), or slices, hosts and GPUs per host (`1x32x8`). Empty if JAX cannot
            compile for the machine.
        topology_options: further options of `get_topology_desc`.
        any_device_count: whether it means all devices of this process, however many (`cpu`).
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
    any_device_count: bool = False

    @property
    def devices(self) -> int:
        """The number of JAX devices."""
        return self.chips * self.chip.devices_per_chip

    @property
    def devices_per_slice(self) -> int:
        """The number of JAX devices in a slice.

        ICI joins all of them on TPUs. NVLink and NeuronLink join `chip.linked_chips`, and the
        network joins the rest.
        """
        return self.devices // self.slices

    @property
    def memory_per_device(self) -> float:
        """The HBM bytes of one JAX device."""
        if self.chip.platform == "cpu":  # virtual devices share the host's memory
            return self.chip.memory_bytes / self.devices
        return self.chip.memory_per_device

    @property
    def hbm_budget(self) -> float:
        """The bytes per device that a program may use; some compilers reserve a part."""
        budget = self.chip.program_memory_bytes
        return self.memory_per_device if budget is None else budget / self.chip.devices_per_chip

    @property
    def usd_per_hour(self) -> float | None:
        """The list price of all chips for an hour; None if unknown."""
        price = self.chip.price
        return None if price is None else self.chips * price.usd_per_chip_hour

    def facts(self) -> dict[str, Any]:
        """Returns its size and price as JSON values."""
        return {
            "target": self.name,
            "chips": self.chips,
            "devices": self.devices,
            "hosts": self.hosts,
            "topology": self.topology,
            "usd_per_hour": self.usd_per_hour,
        }

    def __str__(self) -> str:
        parts = [f"{self.chips} x {self.chip.name}"]
        if self.devices != self.chips:
            parts.append(f"{self.devices} devices")
        if self.chip.platform != "cpu":
            parts.append(plural(self.hosts, "host"))
        if self.slices > 1:
            parts.append(f"{self.slices} slices")
        return ", ".join(parts)
