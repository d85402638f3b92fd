"""FLOPs of flash kernels: the blocks that a mask leaves, and matmuls by pass."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels.attention.flops import flash_flops, visible_fraction
from dovetail.kernels.attention.masks import Causal, Full, Mask, Prefix, SlidingWindow


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize(
    "mask", [Full(), Causal(), SlidingWindow(1), SlidingWindow(40), SlidingWindow(200)], ids=str
)
def test_only_blocks_with_a_visible_pair_count(mask: Mask, block: int) -> None:
    length = 192
    positions = jnp.arange(length)
    allowed = np.asarray(mask.allowed(positions[:, None], positions[None, :]))
    count = length // block
    visible = allowed.reshape(count, block, count, block).any(axis=(1, 3)).mean()
    assert visible_fraction(mask, length, length, block) == pytest.approx(float(visible))


def test_without_a_band_all_blocks_count() -> None:
    assert visible_fraction(Causal() | Prefix(4), 64, 64, 16) == 1.0


def test_matmuls_by_pass() -> None:
    count = flash_flops({"forward": 2, "backward": 7, "prepare": 0}, heads_axis=2)
    query, key = (3, 256, 8, 64), (3, 256, 2, 64)
    matmul = 2 * 3 * 8 * 256 * 256 * 64
    assert count("forward_kernel", [(1, 4, 4), query, key, key]) == 2 * matmul
    assert count("backward_kernel", [query, key, key]) == 7 * matmul
    assert count("prepare", [query]) == 0
    assert count("another", [query, key, key]) is None
