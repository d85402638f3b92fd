"""From a target's name to its machine: `tpu-v5p-512`, `gpu-h100-256`, `2xtpu-v5e-256`, `cpu-8`.

The number of slices comes first, as in "two v5e-256". Other programs take it as an option
(`--num-slices`). Behind the name, as in `v5e-256-2`, it would look like a size.
"""

from __future__ import annotations

import re
from typing import Any

from dovetail.config import ConfigError, did_you_mean
from dovetail.hardware import cpu_chip
from dovetail.targets.families import MACHINE_FAMILIES, MachineFamily, SliceShape
from dovetail.targets.machine import Machine
from dovetail.utils import host_memory_bytes

_NAME = re.compile(r"(?:(?P<slices>[1-9]\d*)x)?(?P<prefix>[a-z][a-z0-9-]*?)(?:-(?P<number>\d+))?")


def parse_target(name: str) -> Machine:
    """Returns the machine of that name; an unknown name is an error that lists all targets."""
    match = _NAME.fullmatch(name.strip().lower())
    if match is None:
        raise _unknown(name)
    slices, number = int(match["slices"] or 1), match["number"]
    if match["prefix"] == "cpu":
        return _cpu(name, slices, int(number) if number is not None else None)
    family = _families().get(match["prefix"])
    if family is None:
        raise _unknown(name)
    if number is None:
        raise ConfigError(
            f"--target {name}: how many? Write {family.prefix}-N, where N counts {family.counts}, "
            f"such as {family.prefix}-{family.example}."
        )
    return _machine(family, int(number), slices)


def example_targets() -> list[str]:
    """Returns one name of each family, for lists and completion."""
    return [
        *(f"{family.prefix}-{family.example}" for family in MACHINE_FAMILIES.values()),
        "cpu",
        "cpu-8",
    ]


def family_facts() -> dict[str, dict[str, Any]]:
    """Returns all families by prefix as JSON values, each with a machine as an example."""
    return {
        prefix: family.facts() | {"example": parse_target(f"{prefix}-{family.example}").facts()}
        for prefix, family in MACHINE_FAMILIES.items()
    }


def _families() -> dict[str, MachineFamily]:
    names = {alias: family for family in MACHINE_FAMILIES.values() for alias in family.aliases}
    return names | MACHINE_FAMILIES


def _machine(family: MachineFamily, number: int, slices: int) -> Machine:
    chip, chips = family.chip, number // family.units_per_chip
    shape = family.shape(chips, chip) if number == chips * family.units_per_chip else None
    if shape is None:
        raise _no_such_size(family, number)
    kind = f"{family.prefix}-{number}"
    one_host = chips <= max(chip.chips_per_host, family.single_host_chips)
    return Machine(
        name=kind if slices == 1 else f"{slices}x{kind}",
        kind=kind,
        chip=chip,
        chips=slices * chips,
        hosts=slices * (1 if one_host else chips // chip.chips_per_host),
        slices=slices,
        **_topology(family, shape, slices),
    )


def _topology(family: MachineFamily, shape: SliceShape, slices: int) -> dict[str, Any]:
    """Returns the fields of `Machine` that JAX needs to compile for it."""
    if not family.topology_name:
        return {"platform": family.chip.platform}
    if family.chip.platform == "gpu":
        topology = "x".join(map(str, (slices, *shape)))
        return {"platform": "cuda", "topology": topology}
    options: dict[str, Any] = {"num_slices": slices} if slices > 1 else {}
    if family.chip_config:
        options["chip_config_name"] = family.chip_config
    topology = f"{family.topology_name}:{'x'.join(map(str, shape))}"
    return {"platform": "tpu", "topology": topology, "topology_options": options}


def _cpu(name: str, slices: int, number: int | None) -> Machine:
    if slices > 1 or number == 0:
        raise _unknown(name)
    kind = "cpu" if number is None else f"cpu-{number}"
    return Machine(
        name=kind,
        kind=kind,
        chip=cpu_chip(float(host_memory_bytes())),
        chips=number or 1,
        hosts=1,
        platform="cpu",
        any_device_count=number is None,
    )


def _no_such_size(family: MachineFamily, number: int) -> ConfigError:
    sizes = family.sizes()
    below = [size for size in sizes if size < number][-1:]
    above = [size for size in sizes if size > number][:1]
    near = " and ".join(f"{family.prefix}-{size}" for size in (*below, *above))
    return ConfigError(
        f"--target {family.prefix}-{number}: there is no such machine; the number counts "
        f"{family.counts}. The nearest sizes: {near}."
    )


def _unknown(name: str) -> ConfigError:
    known = [*MACHINE_FAMILIES, "cpu"]
    prefix = re.sub(r"^\d+x|-\d+$", "", name.strip().lower())
    forms = ", ".join([*(f"{prefix}-N" for prefix in MACHINE_FAMILIES), "cpu", "cpu-N"])
    nearest = did_you_mean(prefix, known)
    advice = f"{nearest} " if nearest.startswith("Did you mean") else ""
    return ConfigError(
        f"--target {name}: there is no such target. {advice}There are {forms}; 2x in front means "
        "two slices. `dovetail config targets` describes each."
    )
