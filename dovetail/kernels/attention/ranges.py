"""Key ranges: the mask and the packed segments of an aligned call, as one range per query.

Segments of an aligned call are contiguous, so the keys of a query are one range around it. A kernel
that gets its start and stop needs no other mask, and skips the blocks outside. Both ends are
non-decreasing along the sequence.

B batch, S sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Band


class TokenRanges(NamedTuple):
    """For each token, the range of tokens [start, stop) on the other side."""

    start_BS: jax.Array
    stop_BS: jax.Array


def kv_ranges(band: Band, segment_ids_BS: jax.Array | None, shape: tuple[int, ...]) -> TokenRanges:
    """Returns the keys that each query attends to. Padding attends to padding: zero its output.

    Args:
        band: the mask.
        segment_ids_BS: if given, a query attends only to its own segment.
        shape: begins with batch and sequence.
    """
    batch, length = shape[:2]
    index_S = jnp.arange(length, dtype=jnp.int32)
    start_BS, stop_BS = _segment_ranges(segment_ids_BS, batch, length)
    if band.back is not None:
        start_BS = jnp.maximum(start_BS, index_S - band.back)
    if band.ahead is not None:
        stop_BS = jnp.minimum(stop_BS, index_S + band.ahead + 1)
    return TokenRanges(start_BS, stop_BS)


def q_ranges(band: Band, segment_ids_BS: jax.Array | None, shape: tuple[int, ...]) -> TokenRanges:
    """Returns the queries that attend to each key: `kv_ranges` of the transposed mask."""
    return kv_ranges(Band(band.ahead, band.back), segment_ids_BS, shape)


def _segment_ranges(
    segment_ids_BS: jax.Array | None, batch: int, length: int
) -> tuple[jax.Array, jax.Array]:
    """Returns the start and stop of each token's segment."""
    zeros = jnp.zeros((batch, length), jnp.int32)
    if segment_ids_BS is None:
        return zeros, zeros + length
    index_S = jnp.arange(length, dtype=jnp.int32)
    changes = segment_ids_BS[:, 1:] != segment_ids_BS[:, :-1]
    is_first_BS = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    is_last_BS = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
    start_BS = jax.lax.cummax(jnp.where(is_first_BS, index_S, 0), axis=1)
    stop_BS = jax.lax.cummin(jnp.where(is_last_BS, index_S + 1, length), axis=1, reverse=True)
    return start_BS, stop_BS
