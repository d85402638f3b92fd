"""Ring attention: a sequence split over devices, whose keys go round (arXiv 2310.01889).

Each device keeps its queries. Keys and values move on from device to device while the last ones
are computed with, so that no device ever holds more than its part, and no score stays: the
backward pass goes round once more, and the gradients of keys travel with them. Under a causal mask
devices would have unequal work; `ring_layouts` shares it out.

It is made of plain XLA operations. Where heads divide over the devices, `ulysses` runs a kernel
on whole sequences instead.

B batch, S queries and T keys of a device, H heads, K key-value heads, G heads that share one, D
width of queries and keys, W of values, N blocks.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.device_parts import is_sequence_split, split_refusal
from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.online import Seen, closed, look, seen_nothing
from dovetail.kernels.attention.op import OUTPUT_TAG, attention_op
from dovetail.kernels.attention.ring_layouts import Pair, passed_on, ring_layout
from dovetail.kernels.attention.scores import (
    Places,
    Rule,
    allowed_in_block,
    block_gradients,
    sinks_by_head,
    sinks_gradient,
)
from dovetail.kernels.attention.shapes import by_head, from_heads, to_heads
from dovetail.kernels.registry import current_platform
from dovetail.kernels.score_maps import ScoreBias, ScoreMap
from dovetail.kernels.sharded import mesh_axes, on_each_device, parts
from dovetail.parallel import tag

# Queries of a block, and keys: no more scores than these are in memory at once.
BLOCK = 512


class Plan(NamedTuple):
    """All that is known before any array: static, and so hashable."""

    rule: Rule
    layout: Any  # a RingLayout
    axes: tuple[str, ...]
    devices: int


class Queries(NamedTuple):
    """A range of queries: their vectors, positions, segments and indices."""

    query_BKGSD: jax.Array
    positions_BS: jax.Array
    segments_BS: jax.Array
    index_S: jax.Array


class Keys(NamedTuple):
    """A range of keys, with their values."""

    key_BKTD: jax.Array
    value_BKTW: jax.Array
    positions_BT: jax.Array
    segments_BT: jax.Array
    index_T: jax.Array


# Where each array has its tokens.
QUERY_AXES: Any = Queries._make((3, 1, 1, 0))
KEY_AXES: Any = Keys._make((2, 2, 1, 1, 0))
SEEN_AXES: Any = Seen._make((3, 3, 3))


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


def _is_slow(*_: Any, **__: Any) -> bool:
    return current_platform() != "cpu"


@attention_op.register(
    "ring", supports=_supports, slow=_is_slow, when=is_sequence_split, before="blockwise"
)
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
    axes, devices = mesh_axes("sequence"), parts("sequence")
    layout = ring_layout(mask, axes, devices, query_BSHD.shape[1] // devices)
    rule = Rule(mask, True, scale, score_map, score_bias, weigh)
    part = functools.partial(_on_device, Plan(rule, layout, axes, devices))
    tokens, heads = ("batch", "sequence"), ("batch", "sequence", "heads", None)
    keys = ("batch", "sequence", "kv_heads", None)
    run = on_each_device(part, (heads, keys, keys, tokens, tokens, ("heads",)), heads)
    if query_segments_BS is None:
        query_segments_BS = jnp.ones_like(query_positions_BS)
    mixed_BSHW: jax.Array = run(
        query_BSHD, key_BTKD, value_BTKW, query_positions_BS, query_segments_BS, sinks_H
    )
    return mixed_BSHW


def _on_device(
    plan: Plan,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    positions_BS: jax.Array,
    segments_BS: jax.Array,
    sinks_H: jax.Array | None,
) -> jax.Array:
    """Runs one device's part: from the order of the sequence into the layout, and back."""
    arrays = (query_BSHD, key_BSKD, value_BSKW, positions_BS, segments_BS)
    query, key, value, *places = (plan.layout.arrange(array, 1) for array in arrays)
    mixed_BSHW = _ring(plan, query, key, value, sinks_H, tuple(places))
    restored: jax.Array = plan.layout.restore(mixed_BSHW, 1)
    return restored


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _ring(plan: Plan, query: Any, key: Any, value: Any, sinks_H: Any, places: Any) -> jax.Array:
    return _forward(plan, query, key, value, sinks_H, places)[0]


def _forward(
    plan: Plan,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    sinks_H: jax.Array | None,
    places: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, tuple[Any, ...]]:
    device = jax.lax.axis_index(plan.axes)
    queries, keys = _ranges(plan, query_BSHD, key_BSKD, value_BSKW, places)
    seen = seen_nothing(queries.query_BKGSD.shape[:-1], value_BSKW.shape[-1])

    def compute(seen: Seen, keys: Keys, other: jax.Array | None) -> Seen:
        for pair in plan.layout.pairs(device, other):
            seen = _looked(plan, seen, queries, keys, pair)
        return seen

    def hop(turn: jax.Array, carried: tuple[Keys, Seen]) -> tuple[Keys, Seen]:
        keys, seen = carried
        # The next ones are on their way while these are computed with.
        return _next(plan, keys), compute(seen, keys, (device - turn) % plan.devices)

    hops = plan.layout.hops
    if hops:
        following = _next(plan, keys)
        seen = compute(seen, keys, None)
        following, seen = jax.lax.fori_loop(1, hops, hop, (following, seen))
        seen = compute(seen, following, (device - hops) % plan.devices)
    else:
        seen = compute(seen, keys, None)
    mixed_BKGSW, log_BKGS = closed(plan.rule, seen, sinks_by_head(sinks_H, key_BSKD.shape[2]))
    # Both carry the tag: a policy that keeps the output spares the backward pass this one.
    mixed_BSHW = tag(from_heads(mixed_BKGSW).astype(query_BSHD.dtype), OUTPUT_TAG)
    log_BKGS = tag(log_BKGS, OUTPUT_TAG)
    return mixed_BSHW, (query_BSHD, key_BSKD, value_BSKW, sinks_H, places, mixed_BSHW, log_BKGS)


def _backward(plan: Plan, kept: tuple[Any, ...], gradient_BSHW: jax.Array) -> tuple[Any, ...]:
    query_BSHD, key_BSKD, value_BSKW, sinks_H, places, mixed_BSHW, log_BKGS = kept
    device, kv_heads = jax.lax.axis_index(plan.axes), key_BSKD.shape[2]
    queries, keys = _ranges(plan, query_BSHD, key_BSKD, value_BSKW, places)
    # The sum of shares times their gradients is the output times its gradient.
    product_BSHW = mixed_BSHW.astype(jnp.float32) * gradient_BSHW.astype(jnp.float32)
    mean_BKGS = to_heads(product_BSHW.sum(axis=-1, keepdims=True), kv_heads)[..., 0]
    rows = (to_heads(gradient_BSHW, kv_heads), log_BKGS, mean_BKGS)

    def compute(totals: Any, keys: Keys, other: jax.Array | None) -> Any:
        for pair in plan.layout.pairs(device, other):
            totals = _pulled(plan, totals, queries, rows, keys, pair)
        return totals

    def hop(turn: jax.Array, carried: Any) -> Any:
        keys, (by_query, *by_keys) = carried
        keys, by_keys = _next(plan, keys), passed_on(plan.axes, plan.devices, by_keys)
        return keys, compute((by_query, *by_keys), keys, (device - turn) % plan.devices)

    nothing = [jnp.zeros(part.shape) for part in (queries.query_BKGSD, *keys[:2])]
    started = (keys, compute(tuple(nothing), keys, None))
    hops = plan.layout.hops
    _, (by_query, *by_keys) = jax.lax.fori_loop(1, hops + 1, hop, started)
    # What travelled with the keys comes home.
    by_keys = passed_on(plan.axes, plan.devices, by_keys, -hops)
    by_key, by_value = (part.transpose(0, 2, 1, 3) for part in by_keys)
    return (
        from_heads(by_query).astype(query_BSHD.dtype),
        by_key.astype(key_BSKD.dtype),
        by_value.astype(value_BSKW.dtype),
        sinks_gradient(sinks_H, log_BKGS, mean_BKGS),
        None,
    )


_ring.defvjp(_forward, _backward)


def _ranges(
    plan: Plan, query: jax.Array, key: jax.Array, value: jax.Array, places: tuple[Any, Any]
) -> tuple[Queries, Keys]:
    """Returns all queries and keys of this device."""
    query_BKGSD, key_BKTD, value_BKTW = by_head(query, key, value)
    index_S = plan.layout.index(jax.lax.axis_index(plan.axes))
    return Queries(query_BKGSD, *places, index_S), Keys(key_BKTD, value_BKTW, *places, index_S)


def _next(plan: Plan, keys: Keys) -> Keys:
    moved: Keys = passed_on(plan.axes, plan.devices, keys)
    return moved


def _looked(plan: Plan, seen: Seen, queries: Queries, keys: Keys, pair: Pair) -> Seen:
    """Returns what has been seen after the keys of one pair, a block of scores at a time."""
    here = _cut(queries, QUERY_AXES, pair.query, pair.length)
    seen_here = _cut(seen, SEEN_AXES, pair.query, pair.length)
    there = _blocks(_cut(keys, KEY_AXES, pair.key, pair.length), KEY_AXES)

    def block(rows: tuple[Queries, Seen]) -> Seen:
        some, seen = rows

        def step(seen: Seen, keys: Keys) -> tuple[Seen, None]:
            judged = _judged(plan.rule, some, keys)
            return look(plan.rule, *judged, seen, some.query_BKGSD, *keys[:2]), None

        return jax.lax.scan(step, seen, there)[0]

    rows = (_blocks(here, QUERY_AXES), _blocks(seen_here, SEEN_AXES))
    updated = _joined(jax.lax.map(block, rows), SEEN_AXES)
    return _put(seen, updated, pair.query)


def _pulled(
    plan: Plan, totals: Any, queries: Queries, rows: Any, keys: Keys, pair: Pair
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Adds the gradients of one pair, a block of scores at a time."""
    here = _blocks(
        _cut((*queries, *rows), (*QUERY_AXES, 3, 3, 3), pair.query, pair.length),
        (*QUERY_AXES, 3, 3, 3),
    )
    there = _blocks(_cut(keys, KEY_AXES, pair.key, pair.length), KEY_AXES)

    def block(by_keys: Any, some: Any) -> Any:
        part, rows = Queries(*some[:4]), some[4:]

        def step(by_query: jax.Array, keys: Keys) -> Any:
            judged = _judged(plan.rule, part, keys)
            found = block_gradients(plan.rule, *judged, part.query_BKGSD, *keys[:2], *rows)
            return by_query + found[0], found[1:]

        by_query, more = jax.lax.scan(step, jnp.zeros(part.query_BKGSD.shape), there)
        return jax.tree.map(jnp.add, by_keys, more), by_query

    nothing = tuple(jnp.zeros(part.shape) for part in there[:2])
    by_keys, by_query = jax.lax.scan(block, nothing, here)
    found = (*_joined((by_query,), (3,)), *_joined(by_keys, (2, 2)))
    starts = (pair.query, pair.key, pair.key)
    return tuple(  # type: ignore[return-value]
        _added(total, part, start, axis)
        for total, part, start, axis in zip(totals, found, starts, (3, 2, 2), strict=True)
    )


def _judged(rule: Rule, queries: Queries, keys: Keys) -> tuple[Places, jax.Array]:
    """Returns where the queries and keys of a block stand, and which pairs are allowed."""
    places = Places(queries.positions_BS, keys.positions_BT, queries.segments_BS, keys.segments_BT)
    return places, allowed_in_block(rule, places, queries.index_S, keys.index_T)


def block_size(length: int) -> int:
    """Returns how many tokens are a block: as many as divide a range, up to a limit."""
    return next(size for size in range(min(length, BLOCK), 0, -1) if length % size == 0)


def _cut(arrays: Any, axes: Any, start: jax.Array | int, length: int) -> Any:
    return _each(
        lambda array, axis: jax.lax.dynamic_slice_in_dim(array, start, length, axis), arrays, axes
    )


def _put(arrays: Seen, parts: Seen, start: jax.Array | int) -> Seen:
    update = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=start, axis=3)
    updated: Seen = jax.tree.map(update, arrays, parts)
    return updated


def _added(total: jax.Array, part: jax.Array, start: jax.Array | int, axis: int) -> jax.Array:
    summed = jax.lax.dynamic_slice_in_dim(total, start, part.shape[axis], axis) + part
    return jax.lax.dynamic_update_slice_in_dim(total, summed, start, axis)


def _blocks(arrays: Any, axes: Any) -> Any:
    """Splits the tokens of arrays into blocks, which stand along a first axis."""

    def split(array: jax.Array, axis: int) -> jax.Array:
        size = block_size(array.shape[axis])
        shape = (*array.shape[:axis], -1, size, *array.shape[axis + 1 :])
        return jnp.moveaxis(array.reshape(shape), axis, 0)

    return _each(split, arrays, axes)


def _joined(blocks: Any, axes: Any) -> Any:
    """Undoes `_blocks`."""

    def join(array: jax.Array, axis: int) -> jax.Array:
        moved = jnp.moveaxis(array, 0, axis)
        return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])

    return _each(join, blocks, axes)


def _each(function: Any, arrays: Any, axes: Any) -> Any:
    """Applies a function to each array and its axis; the result is of the same kind."""
    return jax.tree.map(function, arrays, axes)
