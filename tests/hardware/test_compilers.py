"""Devices that are not there: what is missing is said, and GPUs are described in full."""

from __future__ import annotations

import pytest

from dovetail.config import ConfigError
from dovetail.hardware import GPU_FIGURES, chip_for_device, compilers
from dovetail.hardware.compilers import gpu_topology, target_text, tpu_topology


def test_a_compiler_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "can_compile_for", lambda platform: False)
    with pytest.raises(ConfigError, match=r"needs libtpu.*pip install 'dovetail\[tpu\]'"):
        tpu_topology("v5e:2x2")
    with pytest.raises(ConfigError, match=r"CUDA plugin.*pip install 'dovetail\[cuda\]'"):
        gpu_topology("h100")


def test_a_gpu_without_figures_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no figures of a GPU 'h1000'. Did you mean 'h100'"):
        gpu_topology("h1000")


@pytest.mark.parametrize("name", GPU_FIGURES)
def test_figures_agree_with_the_catalogue(name: str) -> None:
    figures = GPU_FIGURES[name]
    chip = chip_for_device(figures.device_kind)
    assert chip is not None
    assert figures.memory_bandwidth == chip.memory_bandwidth
    assert figures.memory_bytes == pytest.approx(chip.memory_bytes, rel=0.1)
    text = target_text(figures)
    assert f"core_count: {figures.cores}\n" in text
    assert f'device_description_str: "{figures.device_kind}"' in text
