"""What is known of a chip: plain data, which no other room needs JAX to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The precisions that `Chip.peak_flops` gives figures for.
PRECISIONS = ("float32", "bfloat16", "float8", "int8")
# Those that one rounds to for the sake of speed.
SMALL_PRECISIONS = ("float8", "int8")


def precision_of(dtype: str) -> str:
    """Returns what `Chip.peak_flops` calls a type of number; chips are as fast in any float8."""
    return "float8" if dtype.startswith("float8") else dtype


@dataclass(frozen=True)
class Price:
    """What renting one chip for an hour costs, on demand, by somebody's public list.

    Attributes:
        usd_per_chip_hour: a machine's price divided by its chips; the host's share is in it.
        date: the day that the source says the price is of; the day it was read, where it says none.
        source: the address where it was read.
        offer: what is sold at that price.
    """

    usd_per_chip_hour: float
    date: str
    source: str
    offer: str


@dataclass(frozen=True)
class Chip:
    """One accelerator, or one CPU machine.

    Attributes:
        name: what targets call it, such as `tpu-v5p`.
        kind: the JAX platform, `tpu`, `gpu`, `neuron` or `cpu`.
        device_kinds: what JAX's `device.device_kind` says on it.
        peak_flops: the highest dense rate by precision (no sparsity), in operations a second. It is
            what matrix products reach under JAX's default settings: float32 is done as bfloat16 on
            TPUs and as TF32 on NVIDIA's. A precision that a chip has no unit for is widened to
            bfloat16, so it has that figure.
        memory_bytes: the memory for arrays.
        memory_bandwidth: bytes a second between that memory and the chip.
        links: how many links to other chips of the same machine or pod it has.
        link_bandwidth: bytes a second over one link in one direction.
        devices_per_chip: how many JAX devices share this chip. All other figures are for the chip.
        chips_per_host: how many belong to one host (one process) of a machine of several hosts.
        linked_chips: how many chips the links can join; beyond that there is only the network.
        network_bandwidth: bytes a second between hosts in one direction, a chip's share; None
            where it is not known.
        program_memory_bytes: what its compiler gives to programs; None where that is not known.
        price: None where no public list price was found.
    """

    name: str
    kind: str
    device_kinds: tuple[str, ...]
    peak_flops: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth: float
    links: int = 0
    link_bandwidth: float = 0.0
    devices_per_chip: int = 1
    chips_per_host: int = 1
    linked_chips: int = 1
    network_bandwidth: float | None = None
    program_memory_bytes: float | None = None
    price: Price | None = None

    def flops_per_device(self, precision: str) -> float:
        """Returns the peak rate of one JAX device: what a rate is divided by to get its MFU."""
        if precision not in self.peak_flops:
            raise ValueError(
                f"{self.name}: no peak rate for {precision!r}. "
                f"There is one for {', '.join(self.peak_flops) or 'none'}."
            )
        return self.peak_flops[precision] / self.devices_per_chip

    def gains_by(self, precision: str) -> bool:
        """Says whether products are faster in a precision than in bfloat16."""
        return self.peak_flops.get(precision, 0.0) > self.peak_flops.get("bfloat16", 0.0)

    @property
    def memory_per_device(self) -> float:
        """The bytes that one JAX device has for its arrays."""
        return self.memory_bytes / self.devices_per_chip

    @property
    def interconnect_bandwidth(self) -> float:
        """Bytes a second out of the chip over all its links together."""
        return self.links * self.link_bandwidth


def peak_rates(
    bfloat16: float,
    float32: float | None = None,
    float8: float | None = None,
    int8: float | None = None,
) -> dict[str, float]:
    """Returns the rates by precision, with bfloat16's where a chip has nothing better."""
    return {
        "float32": float32 or bfloat16,
        "bfloat16": bfloat16,
        "float8": float8 or bfloat16,
        "int8": int8 or bfloat16,
    }
