"""Masks: what they allow, what they answer, and that they are values."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Component, ConfigError, ConfigOf, config_for, from_text, to_text
from dovetail.kernels.attention import Causal, Either, Full, Mask, Prefix, SlidingWindow

MASKS: list[Mask] = [
    Full(),
    Causal(),
    SlidingWindow(1),
    SlidingWindow(5),
    Prefix(0),
    Prefix(4),
    Causal() | Prefix(4),
    Causal() & Prefix(4),
    SlidingWindow(5) | (Causal() & Prefix(2)),
    SlidingWindow(5) & SlidingWindow(3),
    SlidingWindow(5) | SlidingWindow(3),
    Full() & SlidingWindow(3),
    Full() | SlidingWindow(3),
]


def table(mask: Mask, length: int = 12) -> np.ndarray:
    """Returns what each query (row) may see."""
    positions = jnp.arange(length)
    return np.asarray(mask.allowed(positions[:, None], positions[None, :]))


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_answers_agree_with_what_is_allowed(mask: Mask) -> None:
    allowed = table(mask)
    assert allowed.shape == (12, 12)
    assert allowed.dtype == bool
    for query, key in itertools.product(range(12), repeat=2):
        if mask.causal and key > query:
            assert not allowed[query, key]
        if mask.reach is not None and query - key >= mask.reach:
            assert not allowed[query, key]


def test_what_each_mask_allows() -> None:
    back = np.arange(12)[:, None] - np.arange(12)
    assert (table(Full())).all()
    assert (table(Causal()) == (back >= 0)).all()
    assert (table(SlidingWindow(3)) == ((back >= 0) & (back < 3))).all()
    assert (table(Prefix(4)) == (np.arange(12) < 4)[None]).all()
    assert (table(Causal() | Prefix(4)) == ((back >= 0) | (np.arange(12) < 4)[None])).all()
    assert (table(Causal() & Prefix(4)) == ((back >= 0) & (np.arange(12) < 4)[None])).all()


def test_answers_of_combinations() -> None:
    window = SlidingWindow(5)
    assert (window.causal, window.reach) == (True, 5)
    assert (Causal() | Prefix(4)).causal is False
    assert (Causal() & Prefix(4)).causal is True
    assert (window & SlidingWindow(3)).reach == 3
    assert (window | SlidingWindow(3)).reach == 5
    assert (window | Causal()).reach is None
    assert (window & Causal()).reach == 5


def test_masks_are_values() -> None:
    assert SlidingWindow(5) == SlidingWindow(5) != SlidingWindow(6)
    assert hash(Causal() | Prefix(4)) == hash(Causal() | Prefix(4))
    assert len({Causal(), Causal(), Full()}) == 2


def test_masks_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="window of 1 or more, got 0"):
        SlidingWindow(0)
    with pytest.raises(ConfigError, match="length of 0 or more, got -1"):
        Prefix(-1)


class Holder(Component):
    """A part with a mask in its config."""

    class Config(Component.Config["Holder"]):
        """The mask is chosen by config."""

        mask: ConfigOf[Mask] = config_for(Causal)


def test_masks_are_named_in_config_text() -> None:
    config = Holder.Config(mask=config_for(SlidingWindow, window=7))
    text = to_text(config)
    assert "dovetail.kernels:SlidingWindow" in text
    assert from_text(text).mask.build() == SlidingWindow(7)


def test_masks_combine_in_config() -> None:
    mask = config_for(Either, first=config_for(Causal), second=config_for(Prefix, length=4))
    text = to_text(Holder.Config(mask=mask))
    assert from_text(text).mask.build() == Causal() | Prefix(4)
