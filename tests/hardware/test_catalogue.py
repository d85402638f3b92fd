"""The catalogue: complete figures, JAX's names for devices, and unknown chips."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dovetail.config import ConfigError
from dovetail.hardware import CHIPS, PRECISIONS, Chip, chip_for_device, chip_named


@pytest.mark.parametrize("chip", CHIPS.values(), ids=lambda chip: chip.name)
def test_every_chip_has_all_its_figures(chip: Chip) -> None:
    assert tuple(chip.peak_flops) == PRECISIONS
    # A slip of a power of ten shows against what any chip of the last years can do.
    assert all(1e14 < rate < 1e16 for rate in chip.peak_flops.values())
    assert chip.peak_flops["float32"] <= chip.peak_flops["bfloat16"] <= chip.peak_flops["int8"]
    assert 10e9 < chip.memory_bytes < 1e12
    assert 5e11 < chip.memory_bandwidth < 2e13
    assert 1e11 < chip.interconnect_bandwidth < 2e12
    assert chip.kind in ("tpu", "gpu")
    assert chip.device_kinds


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
    ],
)
def test_a_chip_is_found_by_the_name_jax_gives_it(device_kind: str, name: str) -> None:
    chip = chip_for_device(device_kind)
    assert chip is not None
    assert chip.name == name
    assert chip is chip_named(name)


@pytest.mark.parametrize(
    "device_kind", ["", "TPU v9", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090"]
)
def test_an_unknown_device_is_none_and_never_a_near_one(device_kind: str) -> None:
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
