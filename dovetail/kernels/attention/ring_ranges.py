"""What tokens see, for the pieces of a ring that kernels compute: ranges, as in `ranges`.

B batch, S tokens of a device or of a piece.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.ranges import Ranges, seen_by, that_see
from dovetail.kernels.attention.ring_layouts import RingLayout
from dovetail.kernels.attention.ring_pieces import Pieces
from dovetail.kernels.attention.scores import Rule


class Tokens(NamedTuple):
    """Which tokens of the whole sequence see a token, and which it sees, and where it stands."""

    seen: Ranges
    seeing: Ranges
    index_1S: jax.Array


def refusal_of(rule: Rule) -> str | None:
    """Returns why ranges cannot say what a rule does, or None if they can."""
    if rule.mask.band is None:
        return f"{rule.mask} is no band around the diagonal"
    if rule.score_bias is not None:
        return f"it knows no bias {rule.score_bias}"
    if rule.weigh is not None:
        return f"it computes a softmax, not {rule.weigh}"
    return None


def describe(pieces: Pieces, positions_BS: jax.Array, segments_BS: jax.Array | None) -> Tokens:
    """Returns the ranges of a device's tokens; the segments of all others are asked for."""
    layout, band = pieces.layout, pieces.rule.mask.band
    assert band is not None
    index_S = layout.index(jax.lax.axis_index(layout.axes))
    if segments_BS is not None:
        segments_BS = jax.lax.all_gather(segments_BS, layout.axes, axis=1, tiled=True)
    whole = (positions_BS.shape[0], layout.length * layout.devices)

    def own(ranges: Ranges) -> Ranges:
        return Ranges(*(jnp.take(array, index_S, axis=1) for array in ranges))

    seen, seeing = (own(find(band, segments_BS, whole)) for find in (seen_by, that_see))
    return Tokens(seen, seeing, index_S[None])


def among(ranges: Ranges, tokens: Tokens) -> Ranges:
    """Returns the ranges, counted from the first of tokens that stand in a row; none is outside."""
    first, length = tokens.index_1S[0, 0], tokens.index_1S.shape[1]
    return Ranges(*(jnp.clip(array - first, 0, length).astype(jnp.int32) for array in ranges))


def seen_share(rule: Rule, layout: RingLayout) -> float:
    """Returns the share of what a device computes that its queries see, of any number of tokens."""
    band: Any = rule.mask.band
    whole = layout.length * layout.devices
    back = whole if band.back is None else min(band.back, whole)
    ahead = whole if band.ahead is None else min(band.ahead, whole)
    seen = whole + _side(back, whole) + _side(ahead, whole)
    return seen / (layout.devices * layout.computed)


def _side(reach: int, whole: int) -> int:
    """Returns how many pairs stand apart by 1 up to `reach`, in one direction."""
    reach = min(reach, whole - 1)
    return reach * whole - reach * (reach + 1) // 2
