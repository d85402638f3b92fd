"""Topologies for compiling: missing compilers are reported, and GPUs are specified in full."""

from __future__ import annotations

import pytest

from dovetail.config import ConfigError
from dovetail.hardware import CHIPS, Chip, chip_named
from dovetail.targets import gpu_topology, missing_compiler, parse_target, topology, tpu_topology
from dovetail.targets.topology import gpu_target_config

GPUS = [chip for chip in CHIPS.values() if chip.gpu is not None]


def test_a_missing_compiler_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topology, "can_compile_for", lambda platform: False)
    with pytest.raises(ConfigError, match=r"needs libtpu.*pip install 'dovetail\[tpu\]'"):
        tpu_topology("v5e:2x2")
    with pytest.raises(ConfigError, match=r"CUDA plugin.*pip install 'dovetail\[cuda\]'"):
        gpu_topology("nvidia-h100")
    assert "pip install 'dovetail[compile]'" in missing_compiler(parse_target("gpu-h100-8"))
    assert missing_compiler(parse_target("trn2-16")) == "there is no compiler for trainium2 here"


def test_an_unknown_gpu_or_one_without_a_specification_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no chip 'nvidia-h1000'.*Did you mean 'nvidia-h100'"):
        gpu_topology("nvidia-h1000")
    with pytest.raises(ConfigError, match=r"no compiler specification of nvidia-h100-pcie"):
        gpu_topology("nvidia-h100-pcie")


@pytest.mark.parametrize("chip", GPUS, ids=lambda chip: chip.name)
def test_the_target_config_is_derived_from_the_catalogue(chip: Chip) -> None:
    assert chip.gpu is not None
    assert chip.gpu.reported_memory_bytes == pytest.approx(chip.memory_bytes, rel=0.1)
    text = gpu_target_config(chip)
    assert f"core_count: {chip.gpu.sm_count}\n" in text
    assert f"memory_bandwidth: {chip.memory_bandwidth:.0f}\n" in text
    assert f'device_description_str: "{chip.device_kinds[0]}"' in text


def test_clocks_are_in_gigahertz() -> None:
    assert "clock_rate_ghz: 1.98\n" in gpu_target_config(chip_named("nvidia-h100"))
