"""Score maps: what they compute, and what they refuse."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, config_for, from_text, to_text
from dovetail.kernels.attention import SoftCap
from dovetail.kernels.cross_entropy import SoftCap as SameSoftCap


def test_a_soft_cap_bends_large_scores_and_leaves_small_ones() -> None:
    scores = np.asarray([-1e6, -50.0, -0.01, 0.0, 0.01, 50.0, 1e6], np.float32)
    capped = np.asarray(jax.jit(SoftCap(50.0))(scores))
    np.testing.assert_allclose(capped, 50 * np.tanh(scores / 50), rtol=1e-6)
    assert np.abs(capped).max() <= 50


def test_equal_caps_are_one_static_argument() -> None:
    assert SameSoftCap is SoftCap
    assert len({SoftCap(30.0), SoftCap(30.0), SoftCap(50.0)}) == 2


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_cap_that_means_nothing_is_refused(cap: float) -> None:
    with pytest.raises(ConfigError, match=r"^SoftCap: expected a finite cap above 0, got"):
        SoftCap(cap)


def test_config_text_may_name_it() -> None:
    config = config_for(SoftCap, cap=30.0)
    assert "dovetail.kernels:SoftCap" in to_text(config)
    assert from_text(to_text(config)).build() == SoftCap(30.0)
