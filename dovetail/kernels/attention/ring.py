"""Ring attention: a sequence split over devices, whose keys go round (arXiv 2310.01889).

Each device keeps its queries. Keys and values move on from device to device while the last ones
are computed with, so that no device ever holds more than its part of them, and no score stays: the
backward pass goes round once more, and the gradients of keys travel with them. Under a causal mask
devices would have unequal work; `ring_layouts` shares it out. What computes is an implementation of
`ring_pieces.piece_op`.

B batch, S tokens of a device, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.device_parts import is_sequence_split, split_refusal
from dovetail.kernels.attention.flash import Rows, rows_of
from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import OUTPUT_TAG, attention_op
from dovetail.kernels.attention.ring_layouts import Pair, passed_on, ring_layout
from dovetail.kernels.attention.ring_pieces import (
    Mixed,
    Pieces,
    joined,
    of_nothing,
    piece_op,
    with_sinks,
)
from dovetail.kernels.attention.scores import Rule, sinks_gradient
from dovetail.kernels.score_maps import ScoreBias, ScoreMap
from dovetail.kernels.sharded import mesh_axes, on_each_device, parts
from dovetail.parallel import tag


class Keys(NamedTuple):
    """What goes round: keys, their values, and what is told of their tokens."""

    key_BSKD: jax.Array
    value_BSKW: jax.Array
    tokens: Any


# Where outputs, and what is known of their rows, have their tokens; all else has them along axis 1.
MIXED_AXES: Any = Mixed._make((1, 2))
ROW_AXES: Any = Rows._make((1, 1, 2, 2))


def _supports(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    *_: Any,
    aligned: bool,
    score_bias: ScoreBias | None = None,
    **__: Any,
) -> str | None:
    if score_bias is not None and mesh_axes("heads"):
        return f"{score_bias} counts heads, which are split over devices"
    return split_refusal(query_BSHD, key_BTKD, aligned)


@attention_op.register("ring", supports=_supports, when=is_sequence_split, before="blockwise")
def ring(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    mask: Mask,
    query_positions_BS: jax.Array,
    query_segments_BS: jax.Array | None,
    scale: float,
    score_map: ScoreMap | None = None,
    score_bias: ScoreBias | None = None,
    sinks_H: jax.Array | None = None,
    weigh: ScoreMap | None = None,
    **_: Any,
) -> jax.Array:
    """Computes attention on a ring of devices; see `attention` for the arguments."""
    layout = ring_layout(
        mask, mesh_axes("sequence"), parts("sequence"), query_BSHD.shape[1] // parts("sequence")
    )
    pieces = piece_op(
        query_BSHD,
        key_BTKD,
        value_BTKW,
        rule=Rule(mask, True, scale, score_map, score_bias, weigh),
        layout=layout,
    )
    tokens, heads = ("batch", "sequence"), ("batch", "sequence", "heads", None)
    keys = ("batch", "sequence", "kv_heads", None)
    run = on_each_device(
        functools.partial(_on_device, pieces),
        (heads, keys, keys, tokens, tokens, ("heads",)),
        heads,
    )
    mixed_BSHW: jax.Array = run(
        query_BSHD, key_BTKD, value_BTKW, query_positions_BS, query_segments_BS, sinks_H
    )
    if query_segments_BS is None:
        return mixed_BSHW
    # To a kernel, padding is a segment like others, whose tokens see each other.
    return jnp.where((query_segments_BS != 0)[..., None, None], mixed_BSHW, 0)


def _on_device(
    pieces: Pieces,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    positions_BS: jax.Array,
    segments_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> jax.Array:
    """Runs one device's part: from the order of the sequence into the layout, and back."""
    layout = pieces.layout
    tokens = pieces.describe(pieces, positions_BS, segments_BS)
    query, key, value = (layout.arrange(array, 1) for array in (query_BSHD, key_BSKD, value_BSKW))
    return layout.restore(_ring(pieces, query, Keys(key, value, tokens), sinks_H), 1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _ring(pieces: Pieces, query_BSHD: Any, keys: Keys, sinks_H: Any) -> jax.Array:
    return _forward(pieces, query_BSHD, keys, sinks_H)[0]


def _forward(
    pieces: Pieces, query_BSHD: jax.Array, keys: Keys, sinks_H: jax.Array | None
) -> tuple[jax.Array, tuple[Any, ...]]:
    layout, queries = pieces.layout, (query_BSHD, keys.tokens)
    device = jax.lax.axis_index(layout.axes)

    def compute(mixed: Mixed, keys: Keys, other: jax.Array | None) -> Mixed:
        for pair in layout.pairs(device, other):
            mixed = _looked(pieces, mixed, queries, keys, pair)
        return mixed

    def hop(turn: jax.Array, carried: tuple[Keys, Mixed]) -> tuple[Keys, Mixed]:
        keys, mixed = carried
        # The next ones are on their way while these are computed with.
        return passed_on(layout, keys), compute(mixed, keys, (device - turn) % layout.devices)

    mixed = of_nothing(query_BSHD, keys.value_BSKW)
    if layout.hops:
        following = passed_on(layout, keys)
        mixed = compute(mixed, keys, None)
        following, mixed = jax.lax.fori_loop(1, layout.hops, hop, (following, mixed))
        mixed = compute(mixed, following, (device - layout.hops) % layout.devices)
    else:
        mixed = compute(mixed, keys, None)
    mixed = with_sinks(pieces.rule, mixed, sinks_H)
    # Both carry the tag: a policy that keeps the output spares the backward pass this one.
    mixed_BSHW = tag(mixed.mixed_BSHW.astype(query_BSHD.dtype), OUTPUT_TAG)
    log_BHS = tag(mixed.log_BHS, OUTPUT_TAG)
    return mixed_BSHW, (query_BSHD, keys, sinks_H, mixed_BSHW, log_BHS)


def _backward(pieces: Pieces, kept: tuple[Any, ...], gradient_BSHW: jax.Array) -> tuple[Any, ...]:
    query_BSHD, keys, sinks_H, mixed_BSHW, log_BHS = kept
    layout, rows = pieces.layout, rows_of(mixed_BSHW, gradient_BSHW, log_BHS)
    queries, device = (query_BSHD, keys.tokens), jax.lax.axis_index(layout.axes)

    def compute(totals: Any, keys: Keys, other: jax.Array | None) -> Any:
        for pair in layout.pairs(device, other):
            totals = _pulled(pieces, totals, queries, rows, keys, pair)
        return totals

    def hop(turn: jax.Array, carried: Any) -> Any:
        keys, (to_query, *to_keys) = carried
        keys, to_keys = passed_on(layout, keys), passed_on(layout, to_keys)
        return keys, compute((to_query, *to_keys), keys, (device - turn) % layout.devices)

    nothing = tuple(jnp.zeros(array.shape) for array in (query_BSHD, *keys[:2]))
    started = (keys, compute(nothing, keys, None))
    _, totals = jax.lax.fori_loop(1, layout.hops + 1, hop, started)
    # What travelled with the keys comes home.
    totals = (totals[0], *passed_on(layout, totals[1:], -layout.hops))
    to_query, to_key, to_value = (
        total.astype(array.dtype)
        for total, array in zip(totals, (query_BSHD, *keys[:2]), strict=True)
    )
    # Each head has its own sink, as if no two shared a key-value head.
    to_sinks_H = sinks_gradient(sinks_H, log_BHS[:, :, None], rows.mean_BHS[:, :, None])
    return to_query, Keys(to_key, to_value, None), to_sinks_H


_ring.defvjp(_forward, _backward)


def _looked(pieces: Pieces, mixed: Mixed, queries: Any, keys: Keys, pair: Pair) -> Mixed:
    """Returns what queries make of the keys of one more pair."""
    query, here = _cut(queries, pair.query, pair.length)
    key, value, there = _cut(keys, pair.key, pair.length)
    found = pieces.forward(pieces, query, key, value, here, there)
    before = _cut(mixed, pair.query, pair.length, MIXED_AXES)
    return _put(mixed, joined(pieces.rule, before, found), pair.query, MIXED_AXES)


def _pulled(
    pieces: Pieces, totals: Any, queries: Any, rows: Rows, keys: Keys, pair: Pair
) -> tuple[jax.Array, ...]:
    """Adds the gradients of one pair."""
    query, here = _cut(queries, pair.query, pair.length)
    key, value, there = _cut(keys, pair.key, pair.length)
    rows = _cut(rows, pair.query, pair.length, ROW_AXES)
    found = pieces.backward(pieces, query, key, value, here, there, rows)
    return tuple(
        _put(total, _cut(total, start, pair.length) + part, start)
        for total, part, start in zip(totals, found, (pair.query, *[pair.key] * 2), strict=True)
    )


def _cut(arrays: Any, start: jax.Array | int, length: int, axes: Any = None) -> Any:
    return _each(
        lambda array, axis: jax.lax.dynamic_slice_in_dim(array, start, length, axis), arrays, axes
    )


def _put(arrays: Any, parts: Any, start: jax.Array | int, axes: Any = None) -> Any:
    def put(array: jax.Array, axis: int, part: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(array, part, start, axis)

    return _each(put, arrays, axes, parts)


def _each(function: Any, arrays: Any, axes: Any, *more: Any) -> Any:
    """Applies a function to each array and the axis of its tokens, which is 1 if not told."""
    axes = jax.tree.map(lambda _: 1, arrays) if axes is None else axes
    return jax.tree.map(function, arrays, axes, *more)
