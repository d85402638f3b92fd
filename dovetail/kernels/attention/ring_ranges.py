"""What tokens see, for the pieces of a ring that kernels compute: ranges, as in `ranges`.

B batch, S tokens of a device or of a piece.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.device_parts import band_of, rule_refusal
from dovetail.kernels.attention.ranges import Ranges, seen_by, that_see
from dovetail.kernels.attention.ring_layouts import RingLayout
from dovetail.kernels.attention.ring_pieces import Pieces
from dovetail.kernels.attention.scores import Rule


class Tokens(NamedTuple):
    """Which tokens of the whole sequence a token sees, which see it, and which it is."""

    seen: Ranges
    seeing: Ranges
    index_1S: jax.Array


def refusal_of(rule: Rule, layout: RingLayout, block: int) -> str | None:
    """Returns why kernels over ranges, in blocks of a size, cannot take a ring's pieces."""
    if layout.piece % block:
        return (
            f"a ring's piece of {layout.piece} tokens, where each device has {layout.length}, is "
            f"no multiple of {block}"
        )
    return rule_refusal(rule.mask, rule.score_bias, rule.weigh)


def describe(pieces: Pieces, positions_BS: jax.Array, segments_BS: jax.Array | None) -> Tokens:
    """Returns the ranges of a device's tokens; the segments of all others are asked for."""
    layout, band = pieces.layout, band_of(pieces.rule.mask)
    index_S = layout.index(jax.lax.axis_index(layout.axes))
    if segments_BS is not None:
        segments_BS = jax.lax.all_gather(segments_BS, layout.axes, axis=1, tiled=True)
    whole = (positions_BS.shape[0], layout.length * layout.devices)

    def own(array_BS: jax.Array) -> jax.Array:
        # A device's tokens are one run or two, and slices are cheaper than a gather.
        starts = [index_S[at] for at in range(0, layout.length, layout.piece)]
        runs = [jax.lax.dynamic_slice_in_dim(array_BS, at, layout.piece, 1) for at in starts]
        return jnp.concatenate(runs, axis=1)

    found = [find(band, segments_BS, whole) for find in (seen_by, that_see)]
    seen, seeing = jax.tree.map(own, found)
    return Tokens(seen, seeing, index_S[None])


def among(ranges: Ranges, tokens: Tokens) -> Ranges:
    """Returns the ranges, counted from the first of tokens that stand in a row; none is outside."""
    first, length = tokens.index_1S[0, 0], tokens.index_1S.shape[1]
    return Ranges(*(jnp.clip(array - first, 0, length).astype(jnp.int32) for array in ranges))
