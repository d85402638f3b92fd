"""Machine families: the part of a target's name before its number, and the slices that exist."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dovetail.hardware import Chip, chip_named

SliceShape = tuple[int, ...]

_CORES = "TensorCores, two per chip"
_CARDS = "GPUs"

# 3D slices below a cube of 64 chips come in these shapes; larger ones consist of whole cubes.
_SMALL_3D_SLICES: dict[int, SliceShape] = {
    4: (2, 2, 1),
    8: (2, 2, 2),
    16: (2, 2, 4),
    32: (2, 4, 4),
}
_2D_SLICES: dict[int, SliceShape] = {
    1: (1, 1),
    4: (2, 2),
    8: (2, 4),
    16: (4, 4),
    32: (4, 8),
    64: (8, 8),
    128: (8, 16),
    256: (16, 16),
}


@dataclass(frozen=True)
class MachineFamily:
    """Targets that differ only in their size.

    Attributes:
        prefix: the name before the number, such as `tpu-v5p`.
        chip_name: the chip, by its catalogue name.
        shape: returns the slice shape of a number of chips, or None if there is no such slice.
        topology_name: libtpu's name of the chip; empty if JAX cannot compile for it.
        counts: what the number counts.
        units_per_chip: how many of those one chip has.
        example: a size for help texts.
        aliases: other prefixes that are understood.
        chip_config: libtpu's `chip_config_name`, if the default differs from the real machine.
        single_host_chips: the largest slice that fits on one host, if more than `chips_per_host`.
    """

    prefix: str
    chip_name: str
    shape: Callable[[int, Chip], SliceShape | None]
    topology_name: str = ""
    counts: str = "chips"
    units_per_chip: int = 1
    example: int = 256
    aliases: tuple[str, ...] = ()
    chip_config: str = ""
    single_host_chips: int = 0

    @property
    def chip(self) -> Chip:
        """The catalogue entry of the chip."""
        return chip_named(self.chip_name)

    def sizes(self) -> list[int]:
        """Returns the numbers that a name may have, up to a TPU pod or 4,096 other chips."""
        chip = self.chip
        most = chip.linked_chips if chip.platform == "tpu" else 4096
        return [
            n * self.units_per_chip for n in range(1, most + 1) if self.shape(n, chip) is not None
        ]

    def facts(self) -> dict[str, Any]:
        """Returns what its number counts, and its chip, as JSON values."""
        chip = self.chip
        return {
            "counts": self.counts,
            "chip": chip.name,
            "peak_flops": dict(chip.peak_flops),
            "memory_bytes": chip.memory_bytes,
            "memory_bandwidth": chip.memory_bandwidth,
            "interconnect_bandwidth": chip.interconnect_bandwidth,
            "linked_chips": chip.linked_chips,
            "chips_per_host": chip.chips_per_host,
            "devices_per_chip": chip.devices_per_chip,
            "network_bandwidth": chip.network_bandwidth,
            "price": None if chip.price is None else asdict(chip.price),
        }


def _torus_3d(chips: int, chip: Chip) -> SliceShape | None:
    """Returns the shape of a 3D slice, as near to a cube as possible.

    It agrees with Google's table for each size listed there
    (https://docs.cloud.google.com/tpu/docs/v5p).
    """
    if not 0 < chips <= chip.linked_chips:
        return None
    if chips in _SMALL_3D_SLICES:
        return _SMALL_3D_SLICES[chips]
    if chips % 64:
        return None
    cubes = chips // 64
    sides = [side for side in range(1, cubes + 1) if cubes % side == 0]
    shapes = [
        (a, b, cubes // (a * b))
        for a, b in itertools.combinations_with_replacement(sides, 2)
        if cubes % (a * b) == 0 and b <= cubes // (a * b)
    ]
    a, b, c = min(shapes, key=lambda shape: (shape[2] - shape[0], shape))
    return 4 * a, 4 * b, 4 * c


def _torus_2d(chips: int, chip: Chip) -> SliceShape | None:
    return _2D_SLICES.get(chips) if chips <= chip.linked_chips else None


def _hosts(chips: int, chip: Chip) -> SliceShape | None:
    """Returns hosts and chips per host: part of one host, or several full hosts."""
    per_host = chip.chips_per_host
    if chips < 1 or (chips > per_host and chips % per_host):
        return None
    return max(1, chips // per_host), min(chips, per_host)


_TPUS = (
    # The two cores of a v4 chip act as one device, which libtpu calls megacore.
    MachineFamily(
        "tpu-v4",
        "tpu-v4",
        _torus_3d,
        "v4",
        _CORES,
        2,
        512,
        aliases=("v4",),
        chip_config="megacore",
    ),
    MachineFamily(
        "tpu-v5e",
        "tpu-v5e",
        _torus_2d,
        "v5e",
        aliases=("v5e", "v5litepod", "tpu-v5litepod"),
        single_host_chips=8,
    ),
    MachineFamily("tpu-v5p", "tpu-v5p", _torus_3d, "v5p", _CORES, 2, 512, aliases=("v5p",)),
    MachineFamily("tpu-v6e", "tpu-v6e", _torus_2d, "v6e", aliases=("v6e",), single_host_chips=8),
    MachineFamily("tpu-7x", "tpu-7x", _torus_3d, "tpu7x", _CORES, 2, 512, aliases=("tpu7x",)),
)
_GPUS = (
    MachineFamily(
        "gpu-a100", "nvidia-a100-80gb", _hosts, "a100", _CARDS, aliases=("gpu-a100-80gb",)
    ),
    MachineFamily("gpu-a100-40gb", "nvidia-a100-40gb", _hosts, "a100", _CARDS),
    MachineFamily("gpu-h100", "nvidia-h100", _hosts, "h100", _CARDS),
    MachineFamily("gpu-h200", "nvidia-h200", _hosts, "h200", _CARDS),
    MachineFamily("gpu-b200", "nvidia-b200", _hosts, "b200", _CARDS, example=512),
    MachineFamily("gpu-gb200", "nvidia-gb200", _hosts, "gb200", _CARDS, example=72),
)
_TRAINIUM = (MachineFamily("trn2", "trainium2", _hosts, example=1024),)

MACHINE_FAMILIES: dict[str, MachineFamily] = {
    family.prefix: family for family in (*_TPUS, *_GPUS, *_TRAINIUM)
}
