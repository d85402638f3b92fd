"""Families of targets: what stands before the number in a name, and what the number counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.hardware import Chip, chip_named
from dovetail.targets.shapes import Shape, torus_2d, torus_3d, whole_hosts

_CORES = "TensorCores, two a chip"
_CARDS = "GPUs"


@dataclass(frozen=True)
class Family:
    """Targets that differ in their number alone.

    Attributes:
        prefix: what stands before the number, such as `tpu-v5p`.
        chip_name: the chip, by its name in the catalogue.
        counts: what the number counts.
        per_chip: how many of that are one chip.
        topology_name: what `get_topology_desc` calls the chip; empty where it knows none.
        shape: from a number of chips to their arrangement, or None where there is no such machine.
        example: a number to show.
        aliases: other prefixes that people write.
        chip_config: what `get_topology_desc` must be told, so that devices are as on the machine.
        whole_host: a slice of up to so many chips is on one host, if that is more than usual.
    """

    prefix: str
    chip_name: str
    shape: Callable[[int, Chip], Shape | None]
    topology_name: str = ""
    counts: str = "chips"
    per_chip: int = 1
    example: int = 256
    aliases: tuple[str, ...] = ()
    chip_config: str = ""
    whole_host: int = 0

    @property
    def chip(self) -> Chip:
        """The chip, with its figures."""
        return chip_named(self.chip_name)

    def sizes(self) -> list[int]:
        """Returns the numbers that a name may have, as far as links or a large cluster reach."""
        chip = self.chip
        most = chip.linked_chips if chip.kind == "tpu" else 4096
        return [n * self.per_chip for n in range(1, most + 1) if self.shape(n, chip) is not None]


def _cube(chips: int, chip: Chip) -> Shape | None:
    return torus_3d(chips, chip.linked_chips)


def _plane(chips: int, chip: Chip) -> Shape | None:
    return torus_2d(chips, chip.linked_chips)


def _hosts(chips: int, chip: Chip) -> Shape | None:
    return whole_hosts(chips, chip.chips_per_host)


_TPUS = (
    # One program drives both cores of a v4 chip, as one device, which libtpu calls megacore.
    Family(
        "tpu-v4",
        "tpu-v4",
        _cube,
        "v4",
        _CORES,
        2,
        512,
        aliases=("v4",),
        chip_config="megacore",
    ),
    Family(
        "tpu-v5e",
        "tpu-v5e",
        _plane,
        "v5e",
        aliases=("v5e", "v5litepod", "tpu-v5litepod"),
        whole_host=8,
    ),
    Family("tpu-v5p", "tpu-v5p", _cube, "v5p", _CORES, 2, 512, aliases=("v5p",)),
    Family("tpu-v6e", "tpu-v6e", _plane, "v6e", aliases=("v6e",), whole_host=8),
    Family("tpu-7x", "tpu-7x", _cube, "tpu7x", _CORES, 2, 512, aliases=("tpu7x",)),
)
_GPUS = (
    Family("gpu-a100", "nvidia-a100-80gb", _hosts, "a100", _CARDS, aliases=("gpu-a100-80gb",)),
    Family("gpu-a100-40gb", "nvidia-a100-40gb", _hosts, "a100", _CARDS),
    Family("gpu-h100", "nvidia-h100", _hosts, "h100", _CARDS),
    Family("gpu-h200", "nvidia-h200", _hosts, "h200", _CARDS),
    Family("gpu-b200", "nvidia-b200", _hosts, "b200", _CARDS, example=512),
    Family("gpu-gb200", "nvidia-gb200", _hosts, "gb200", _CARDS, example=72),
)
_TRAINIUM = (Family("trn2", "trainium2", _hosts, example=1024),)

FAMILIES: dict[str, Family] = {family.prefix: family for family in (*_TPUS, *_GPUS, *_TRAINIUM)}
