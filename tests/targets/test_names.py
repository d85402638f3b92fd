"""Target names: parsing, aliases, and errors for unknown ones."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dovetail.config import ConfigError
from dovetail.targets import MACHINE_FAMILIES, example_targets, family_facts, parse_target


@pytest.mark.parametrize(
    ("name", "chip", "chips", "devices", "hosts", "topology"),
    [
        # v4, v5p and 7x count TensorCores, two per chip; v5e and v6e count chips.
        ("tpu-v5p-512", "tpu-v5p", 256, 256, 64, "v5p:4x8x8"),
        ("tpu-v5p-1024", "tpu-v5p", 512, 512, 128, "v5p:8x8x8"),
        ("tpu-v5p-8", "tpu-v5p", 4, 4, 1, "v5p:2x2x1"),
        ("tpu-v5p-12288", "tpu-v5p", 6144, 6144, 1536, "v5p:16x16x24"),
        ("tpu-v4-64", "tpu-v4", 32, 32, 8, "v4:2x4x4"),
        ("tpu-7x-512", "tpu-7x", 256, 512, 64, "tpu7x:4x8x8"),
        ("tpu-v5e-256", "tpu-v5e", 256, 256, 64, "v5e:16x16"),
        ("tpu-v5e-8", "tpu-v5e", 8, 8, 1, "v5e:2x4"),
        ("tpu-v6e-256", "tpu-v6e", 256, 256, 64, "v6e:16x16"),
        ("gpu-h100-256", "nvidia-h100", 256, 256, 32, "1x32x8"),
        ("gpu-a100-4", "nvidia-a100-80gb", 4, 4, 1, "1x1x4"),
        ("gpu-a100-40gb-16", "nvidia-a100-40gb", 16, 16, 2, "1x2x8"),
        ("gpu-b200-512", "nvidia-b200", 512, 512, 64, "1x64x8"),
        ("gpu-gb200-72", "nvidia-gb200", 72, 72, 18, "1x18x4"),
        ("trn2-1024", "trainium2", 1024, 4096, 64, ""),
        ("cpu", "cpu", 1, 1, 1, ""),
        ("cpu-8", "cpu", 8, 8, 1, ""),
    ],
)
def test_a_name_means_a_machine(
    name: str, chip: str, chips: int, devices: int, hosts: int, topology: str
) -> None:
    machine = parse_target(name)
    assert (machine.name, machine.chip.name) == (name, chip)
    assert (machine.chips, machine.devices, machine.hosts) == (chips, devices, hosts)
    assert machine.topology == topology


def test_the_number_of_slices_comes_first() -> None:
    machine = parse_target("2xtpu-v5e-256")
    assert (machine.slices, machine.chips, machine.devices_per_slice) == (2, 512, 256)
    assert (machine.topology, machine.topology_options) == ("v5e:16x16", {"num_slices": 2})
    assert machine.kind == "tpu-v5e-256"
    assert parse_target("4xgpu-h100-64").topology == "4x8x8"


@pytest.mark.parametrize(
    ("written", "name"),
    [("v5p-512", "tpu-v5p-512"), ("v5litepod-16", "tpu-v5e-16"), ("TPU7x-128", "tpu-7x-128")],
)
def test_other_spellings_mean_the_same(written: str, name: str) -> None:
    assert parse_target(written) == parse_target(name)


@pytest.mark.parametrize("name", example_targets())
def test_every_example_is_a_machine(name: str) -> None:
    machine = parse_target(name)
    assert machine.memory_per_device > 1e8
    assert machine.usd_per_hour is None or machine.usd_per_hour > 0


@pytest.mark.parametrize("family", MACHINE_FAMILIES.values(), ids=lambda family: family.prefix)
def test_shapes_hold_all_chips(family) -> None:
    for number in family.sizes()[:40]:
        shape = parse_target(f"{family.prefix}-{number}").topology.rpartition(":")[2]
        lengths = [int(length) for length in shape.split("x")] if shape else []
        chips = number // family.units_per_chip
        product = 1
        for length in lengths:
            product *= length
        assert product == chips or not lengths


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tpu-v5q-512", ["no such target", "Did you mean 'tpu-v5", "trn2-N", "cpu-N"]),
        ("nonsense!", ["no such target", "gpu-h100-N"]),
        ("2xcpu-2", ["no such target"]),
        ("tpu-v5p", ["how many?", "TensorCores, two per chip", "tpu-v5p-512"]),
        ("tpu-v5p-100", ["no such machine", "tpu-v5p-64 and tpu-v5p-128"]),
        ("tpu-v5e-512", ["no such machine", "counts chips", "tpu-v5e-256"]),
        ("gpu-h100-12", ["no such machine", "gpu-h100-8 and gpu-h100-16"]),
        *((f"{prefix}-0", ["no such machine", f"{prefix}-"]) for prefix in MACHINE_FAMILIES),
    ],
)
def test_an_unknown_target_is_an_error_that_lists_targets(name: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_target(name)
    for word in words:
        assert word in str(caught.value)


def test_the_facts_of_a_family_have_an_example() -> None:
    facts = json.loads(json.dumps(family_facts()))
    assert list(facts) == list(MACHINE_FAMILIES)
    assert facts["tpu-v5p"]["counts"] == "TensorCores, two per chip"
    assert facts["tpu-v5p"]["example"] == parse_target("tpu-v5p-512").facts()
    assert facts["gpu-h100"]["price"]["usd_per_chip_hour"] > 0


def test_importing_targets_imports_no_jax() -> None:
    program = (
        "import sys, dovetail.targets as t; t.parse_target('tpu-v5p-512'); t.target_rules()\n"
        "print(sorted({'jax', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert run.stdout.strip() == "[]"
