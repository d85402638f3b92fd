"""What flash kernels compute: blocks that a mask leaves, products by pass."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels.attention.masks import Causal, Full, Mask, Prefix, SlidingWindow
from dovetail.kernels.attention.work import flash_flops, visible_share


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize(
    "mask", [Full(), Causal(), SlidingWindow(1), SlidingWindow(40), SlidingWindow(200)], ids=str
)
def test_blocks_are_those_in_which_a_query_sees_a_key(mask: Mask, block: int) -> None:
    length = 192
    places = jnp.arange(length)
    allowed = np.asarray(mask.allowed(places[:, None], places[None, :]))
    count = length // block
    seen = allowed.reshape(count, block, count, block).any(axis=(1, 3)).mean()
    assert visible_share(mask, length, length, block) == pytest.approx(float(seen))


def test_what_is_no_band_is_counted_whole() -> None:
    assert visible_share(Causal() | Prefix(4), 64, 64, 16) == 1.0


def test_products_by_pass() -> None:
    count = flash_flops({"forward": 2, "backward": 7, "prepare": 0}, heads_axis=2)
    query, key = (3, 256, 8, 64), (3, 256, 2, 64)
    product = 2 * 3 * 8 * 256 * 256 * 64
    assert count("forward_kernel", [(1, 4, 4), query, key, key]) == 2 * product
    assert count("backward_kernel", [query, key, key]) == 7 * product
    assert count("prepare", [query]) == 0
    assert count("another", [query, key, key]) is None
