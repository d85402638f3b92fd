"""What each query sees as a range of keys: all that a band and packed segments leave.

Segments of an aligned call are runs, so whatever a token sees stands in one piece around it. A
kernel that is told where that begins and ends needs to know nothing else of masks, and skips the
blocks outside of it. Both ends rise from token to token.

B batch, S sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Band


class Ranges(NamedTuple):
    """The first token that each token sees, and the first after those."""

    start_BS: jax.Array
    stop_BS: jax.Array


def seen_by(band: Band, segments_BS: jax.Array | None, shape: tuple[int, ...]) -> Ranges:
    """Returns the range of each token. One of padding sees other padding: clear its row.

    Args:
        band: how far a token sees.
        segments_BS: if given, it sees its own segment alone.
        shape: the call's batch and sequence; what else there is, is of no matter.
    """
    batch, length = shape[:2]
    index_S = jnp.arange(length, dtype=jnp.int32)
    start_BS, stop_BS = _runs(segments_BS, batch, length)
    if band.back is not None:
        start_BS = jnp.maximum(start_BS, index_S - band.back)
    if band.ahead is not None:
        stop_BS = jnp.minimum(stop_BS, index_S + band.ahead + 1)
    return Ranges(start_BS, stop_BS)


def that_see(band: Band, segments_BS: jax.Array | None, shape: tuple[int, ...]) -> Ranges:
    """Returns the tokens that see each token: the same, looked at from the other side."""
    return seen_by(Band(band.ahead, band.back), segments_BS, shape)


def _runs(segments_BS: jax.Array | None, batch: int, length: int) -> tuple[jax.Array, jax.Array]:
    """Returns where the run of equal segments around each token begins, and where it has ended."""
    whole = jnp.zeros((batch, length), jnp.int32)
    if segments_BS is None:
        return whole, whole + length
    index_S = jnp.arange(length, dtype=jnp.int32)
    changes = segments_BS[:, 1:] != segments_BS[:, :-1]
    begins_BS = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    ends_BS = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
    start_BS = jax.lax.cummax(jnp.where(begins_BS, index_S, 0), axis=1)
    stop_BS = jax.lax.cummin(jnp.where(ends_BS, index_S + 1, length), axis=1, reverse=True)
    return start_BS, stop_BS
