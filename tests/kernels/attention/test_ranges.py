"""Key ranges of queries and query ranges of keys, against the mask pair by pair."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels.attention import Band, Causal, Full, Mask, SlidingWindow
from dovetail.kernels.attention.ranges import TokenRanges, kv_ranges, q_ranges

# Rows of 12 tokens: two with documents of several lengths, of one token too; one with padding.
SEGMENTS = jnp.asarray(
    [[1, 1, 1, 2, 3, 3, 3, 3, 4, 4, 4, 4], [7] * 12, [1, 1, 1, 1, 1, 2, 2, 0, 0, 0, 0, 0]]
)
POSITIONS = jnp.arange(SEGMENTS.shape[1])


def pairs(ranges: TokenRanges) -> np.ndarray:
    """Writes ranges out: [B, S, T]."""
    start, stop = ranges.start_BS[..., None], ranges.stop_BS[..., None]
    return np.asarray((start <= POSITIONS) & (stop > POSITIONS))


@pytest.mark.parametrize("mask", [Causal(), Full(), SlidingWindow(3), SlidingWindow(1)], ids=str)
@pytest.mark.parametrize("is_packed", [True, False])
def test_ranges_hold_what_the_mask_allows_within_a_segment(mask: Mask, is_packed: bool) -> None:
    assert mask.band is not None
    segments = SEGMENTS if is_packed else None
    allowed = mask.allowed(POSITIONS[:, None], POSITIONS[None]) & jnp.ones(3, bool)[:, None, None]
    if is_packed:
        allowed &= SEGMENTS[:, :, None] == SEGMENTS[:, None]
    np.testing.assert_array_equal(pairs(kv_ranges(mask.band, segments, SEGMENTS.shape)), allowed)
    queries = pairs(q_ranges(mask.band, segments, SEGMENTS.shape))
    np.testing.assert_array_equal(queries, allowed.swapaxes(1, 2))


def test_a_band_may_reach_ahead() -> None:
    ranges = kv_ranges(Band(1, 2), None, SEGMENTS[:1].shape)
    np.testing.assert_array_equal(ranges.start_BS[0], [0, *range(11)])
    np.testing.assert_array_equal(ranges.stop_BS[0], [*range(3, 12), 12, 12, 12])
