"""The catalogue: all chips with published figures, by their own name and by JAX's name for them."""

from __future__ import annotations

from dovetail.config import ConfigError, did_you_mean
from dovetail.hardware.chip import Chip
from dovetail.hardware.cpu import measured_cpu
from dovetail.hardware.nvidia import GPUS
from dovetail.hardware.tpu import TPUS
from dovetail.hardware.trainium import TRAINIUM

CHIPS: dict[str, Chip] = {chip.name: chip for chip in (*TPUS, *GPUS, *TRAINIUM)}


def chip_for_device(device_kind: str) -> Chip | None:
    """Returns the chip that JAX calls `device_kind`, or None if the catalogue does not have it.

    A name must match exactly but for case: a near name is often a weaker card of the same family,
    and a wrong peak is worse than none. For "cpu" this machine is measured, once.
    """
    wanted = device_kind.strip().lower()
    if wanted == "cpu":
        return measured_cpu()
    for chip in CHIPS.values():
        if wanted in (kind.lower() for kind in chip.device_kinds):
            return chip
    return None


def chip_named(name: str) -> Chip:
    """Returns a chip by its own name, such as `tpu-v5p`."""
    if name not in CHIPS:
        raise ConfigError(
            f"There is no chip {name!r} in the catalogue. " + did_you_mean(name, CHIPS)
        )
    return CHIPS[name]
