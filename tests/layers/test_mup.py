"""Scores that follow from the width of a head."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.config import Config, ConfigError
from dovetail.layers.mup import InverseWidthScale, with_mup_scale
from dovetail.module import functional
from tests.layers.cases import (
    HEAD_WIDTH,
    WIDTH,
    attention,
    latent_attention,
    mixing,
    random_params,
)


def test_nothing_changes_at_the_base_width_and_twice_the_width_halves() -> None:
    scale = InverseWidthScale.Config(base_width=64).build()
    assert scale(64) == 64**-0.5
    assert scale(128) == pytest.approx(scale(64) / 2)
    told = InverseWidthScale.Config(base_width=64, base_scale=0.3).build()
    assert (told(64), told(256)) == (0.3, 0.15)
    with pytest.raises(ConfigError, match="base_width: expected 1 or more, got 0"):
        InverseWidthScale.Config(base_width=0).build()


@pytest.mark.parametrize(
    ("config", "head_width"), [(attention(), HEAD_WIDTH), (latent_attention(), 6)]
)
def test_every_attention_passes_its_own_head_width(config: Config, head_width: int) -> None:
    config = config.clone(width=WIDTH)
    scaled = with_mup_scale(config, 2)
    params = random_params(config.build())
    expected = config.clone(scale=2**0.5 / head_width)
    one, _ = functional(scaled.build(), params, mixing())
    other, _ = functional(expected.build(), params, mixing())
    plain, _ = functional(config.build(), params, mixing())
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert not np.allclose(one, plain, atol=1e-4)
