"""The catalogue: every chip with published specifications, by name and by JAX's device kind."""

from __future__ import annotations

from dovetail.config import ConfigError, did_you_mean
from dovetail.hardware.chip import Chip
from dovetail.hardware.nvidia import GPUS
from dovetail.hardware.tpu import TPUS
from dovetail.hardware.trainium import TRAINIUM

CHIPS: dict[str, Chip] = {chip.name: chip for chip in (*TPUS, *GPUS, *TRAINIUM)}


def chip_for_device(device_kind: str) -> Chip | None:
    """Returns the chip with that `device.device_kind`, or None if the catalogue lacks it.

    A name must match exactly but for case: a similar name is often a slower card of the same
    family, and a wrong peak is worse than none. A CPU has no published peak and is not listed.
    """
    wanted = device_kind.strip().lower()
    for chip in CHIPS.values():
        if wanted in (kind.lower() for kind in chip.device_kinds):
            return chip
    return None


def chip_named(name: str) -> Chip:
    """Returns a chip by its catalogue name, such as `tpu-v5p`."""
    if name not in CHIPS:
        raise ConfigError(
            f"There is no chip {name!r} in the catalogue. " + did_you_mean(name, CHIPS)
        )
    return CHIPS[name]


def cpu_chip(memory_bytes: float) -> Chip:
    """Returns a CPU host as a chip. Its rates are unknown until `runtime.measured_cpu` runs."""
    return Chip(
        name="cpu",
        platform="cpu",
        device_kinds=("cpu",),
        peak_flops={},
        memory_bytes=memory_bytes,
        memory_bandwidth=0.0,
    )
