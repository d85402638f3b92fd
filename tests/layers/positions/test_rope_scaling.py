"""The scalings of rotary frequencies, by what their papers say of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.layers.positions.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    NtkScaling,
    YarnScaling,
)

BASE, WIDTH = 10_000.0, 64
PLAIN = BASE ** -(np.arange(0, WIDTH, 2) / WIDTH)
STRETCHED = {
    "linear": LinearScaling.Config(factor=4.0),
    "ntk": NtkScaling.Config(factor=4.0),
    "llama3": Llama3Scaling.Config(factor=4.0, original_length=2048),
    "yarn": YarnScaling.Config(factor=4.0, original_length=2048),
}


def test_linear_divides_every_frequency() -> None:
    np.testing.assert_allclose(STRETCHED["linear"].build().scaled(PLAIN, BASE), PLAIN / 4)


def test_ntk_raises_the_base() -> None:
    raised = BASE * 4 ** (WIDTH / (WIDTH - 2))
    expected = raised ** -(np.arange(0, WIDTH, 2) / WIDTH)
    np.testing.assert_allclose(STRETCHED["ntk"].build().scaled(PLAIN, BASE), expected)


def test_llama3_goes_by_wavelength() -> None:
    def expected(frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        if wavelength < 2048 / 4:
            return frequency
        if wavelength > 2048:
            return frequency / 4
        smooth = (2048 / wavelength - 1) / (4 - 1)
        return (1 - smooth) * frequency / 4 + smooth * frequency

    found = STRETCHED["llama3"].build().scaled(PLAIN, BASE)
    np.testing.assert_allclose(found, [expected(frequency) for frequency in PLAIN])


def test_yarn_keeps_fast_pairs_stretches_slow_ones_and_sharpens() -> None:
    yarn: Any = STRETCHED["yarn"].build()
    kept = yarn.scaled(PLAIN, BASE) / PLAIN
    turns = 2048 * PLAIN / (2 * math.pi)
    assert yarn.magnitude == pytest.approx(0.1 * math.log(4) + 1)
    np.testing.assert_allclose(kept[turns > 40], 1.0)
    np.testing.assert_allclose(kept[turns < 0.7], 0.25)
    assert (np.diff(kept) <= 0).all()


@pytest.mark.parametrize("name", STRETCHED)
def test_no_scaling_shrinks(name: str) -> None:
    with pytest.raises(ConfigError, match=r"factor: expected 1 or more, got 0.5"):
        STRETCHED[name].clone(factor=0.5).build()
