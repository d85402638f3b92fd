"""The catalogue: complete specifications, JAX's device kinds, and unknown chips."""

from __future__ import annotations

import datetime
import subprocess
import sys

import pytest

from dovetail.config import ConfigError
from dovetail.hardware import CHIPS, PRECISIONS, Chip, chip_for_device, chip_named, cpu_chip


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)
def test_every_chip_is_fully_specified(chip: Chip) -> None:
    assert tuple(chip.peak_flops) == PRECISIONS
    # Bounds that any recent chip meets, to catch an error of a power of ten.
    assert all(1e14 < rate < 1e16 for rate in chip.peak_flops.values())
    assert chip.peak_flops["float32"] <= chip.peak_flops["bfloat16"] <= chip.peak_flops["int8"]
    assert 10e9 < chip.memory_bytes < 1e12
    assert 5e11 < chip.memory_bandwidth < 2e13
    assert 1e11 < chip.interconnect_bandwidth < 2e12
    assert chip.platform in ("tpu", "gpu", "neuron")
    assert chip.device_kinds or chip.platform == "neuron", "the device kind of Trainium is unknown"
    assert chip.linked_chips >= 1
    assert chip.chips_per_host in (4, 8, 16)
    assert chip.network_bandwidth is None or 1e9 < chip.network_bandwidth < 1e11
    # Links are faster than the data-center network.
    assert (chip.network_bandwidth or 0) < chip.interconnect_bandwidth


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)
def test_a_price_has_an_offer_a_date_and_a_source(chip: Chip) -> None:
    if chip.price is None:
        return  # no public list price was found
    assert 0.5 < chip.price.usd_per_chip_hour < 20
    assert datetime.date.fromisoformat(chip.price.date).year >= 2025
    assert chip.price.source.startswith("https://")
    assert chip.price.offer


def test_the_catalogue_has_the_chips_of_all_targets() -> None:
    tpus = {"tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x"}
    gpus = {"a100-40gb", "a100-80gb", "h100", "h200", "b200", "gb200"}
    assert {*tpus, *(f"nvidia-{name}" for name in gpus), "trainium2"} <= CHIPS.keys()


def test_trainium_has_its_published_rates() -> None:
    chip = chip_named("trainium2")
    assert chip.peak_flops["float8"] == 1299e12
    assert (chip.peak_flops["bfloat16"], chip.peak_flops["float32"]) == (667e12, 181e12)
    assert chip.memory_per_device * chip.devices_per_chip == 96 * 2**30


def test_an_unmeasured_cpu_has_memory_but_no_rates() -> None:
    chip = cpu_chip(1e9)
    assert chip.memory_bytes == 1e9
    with pytest.raises(ValueError, match="cpu: no peak rate"):
        chip.flops_per_device("float32")


@pytest.mark.parametrize(
    ("device_kind", "name"),
    [
        ("TPU v4", "tpu-v4"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5e", "tpu-v5e"),
        ("TPU v5", "tpu-v5p"),
        ("TPU v5p", "tpu-v5p"),
        ("TPU v6 lite", "tpu-v6e"),
        ("TPU7x", "tpu-7x"),
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100"),
        ("nvidia h200", "nvidia-h200"),
        ("NVIDIA B200", "nvidia-b200"),
        ("NVIDIA GB200", "nvidia-gb200"),
    ],
)
def test_a_chip_is_found_by_its_device_kind(device_kind: str, name: str) -> None:
    chip = chip_for_device(device_kind)
    assert chip is not None
    assert chip.name == name
    assert chip is chip_named(name)


@pytest.mark.parametrize(
    "device_kind", ["", "cpu", "TPU v9", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090"]
)
def test_an_unknown_device_kind_is_none_and_never_a_similar_chip(device_kind: str) -> None:
    assert chip_for_device(device_kind) is None


def test_no_two_chips_share_a_device_kind() -> None:
    kinds = [kind for chip in CHIPS.values() for kind in chip.device_kinds]
    assert len(kinds) == len(set(kinds))


def test_an_unknown_name_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"no chip 'tpu-v5' .*Did you mean 'tpu-v5"):
        chip_named("tpu-v5")


def test_the_devices_of_one_chip_share_its_rate() -> None:
    chip = chip_named("tpu-7x")
    assert chip.flops_per_device("bfloat16") == pytest.approx(2307e12 / 2)
    assert chip_named("tpu-v5p").flops_per_device("bfloat16") == pytest.approx(459e12)
    with pytest.raises(ValueError, match=r"tpu-7x: no peak rate for 'int4'.* float32, bfloat16"):
        chip.flops_per_device("int4")


def test_importing_hardware_imports_no_jax() -> None:
    program = "import sys, dovetail.hardware; print(sorted({'jax', 'numpy'} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert run.stdout.strip() == "[]"
