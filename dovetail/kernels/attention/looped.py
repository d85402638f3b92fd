"""Attention over long sequences: a loop over blocks of queries, and in it one over blocks of keys.

To write every block out, and to let its queries see all their keys at once, is quickest while
sequences are short; but its memory grows with their square. Here no more than one block of scores
is in memory however long they are, and the program is as long for any of them. What the mask cannot
allow is not computed here either: a block's loop runs from the first block of keys that it can see
to the last.

B batch, S queries, T keys, H heads, K key-value heads, G heads that share one, D width of queries
and keys, W of values, N blocks of queries. Within a block S and T count what belongs to it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.online import Seen, closed, look, seen_nothing
from dovetail.kernels.attention.op import OUTPUT_TAG
from dovetail.kernels.attention.scores import (
    Places,
    Rule,
    allowed_in_block,
    block_gradients,
    sinks_by_head,
    sinks_gradient,
)
from dovetail.kernels.attention.shapes import by_head, from_heads, to_heads
from dovetail.parallel import tag

# Queries of a block, and keys. Smaller ones skip more, larger ones multiply faster.
BLOCK = 512


class Plan(NamedTuple):
    """All that is known before any array: static, and so hashable."""

    rule: Rule
    queries: int
    keys: int


def attend_in_loops(
    rule: Rule,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    sinks_H: jax.Array | None,
    places: Places,
) -> jax.Array:
    """Computes attention by these loops; see `attention` for what it is."""
    plan = Plan(rule, query_BSHD.shape[1], key_BTKD.shape[1])
    # Whole blocks: what fills the last one up is seen by nothing, and is cut off again.
    query_BSHD = _filled(query_BSHD)
    key_BTKD, value_BTKW = _filled(key_BTKD), _filled(value_BTKW)
    places = jax.tree.map(_filled, places)
    mixed_BSHW = _attend(plan, query_BSHD, key_BTKD, value_BTKW, sinks_H, places)
    return mixed_BSHW[:, : plan.queries]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    plan: Plan,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    sinks_H: jax.Array | None,
    places: Places,
) -> jax.Array:
    return _forward(plan, query_BSHD, key_BTKD, value_BTKW, sinks_H, places)[0]


def _forward(
    plan: Plan,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    sinks_H: jax.Array | None,
    places: Places,
) -> tuple[jax.Array, tuple[Any, ...]]:
    query_BKGSD, key_BKTD, value_BKTW = by_head(query_BSHD, key_BTKD, value_BTKW)
    sinks_KG1 = sinks_by_head(sinks_H, key_BTKD.shape[2])

    def block(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        part_BKGSD = _part(query_BKGSD, number, 3)

        def step(turn: jax.Array, seen: Seen) -> Seen:
            keys = _part(key_BKTD, turn, 2), _part(value_BKTW, turn, 2)
            return look(plan.rule, *_pairs(plan, places, number, turn), seen, part_BKGSD, *keys)

        nothing = seen_nothing(part_BKGSD.shape[:-1], value_BKTW.shape[-1])
        seen = jax.lax.fori_loop(*_turns(plan, number), step, nothing)
        mixed_BKGSW, log_BKGS = closed(plan.rule, seen, sinks_KG1)
        return mixed_BKGSW.astype(query_BSHD.dtype), log_BKGS

    mixed_NBKGSW, log_NBKGS = jax.lax.map(block, jnp.arange(query_BSHD.shape[1] // BLOCK))
    # Both carry the tag: a policy that keeps the output spares the backward pass this one.
    mixed_BSHW = tag(from_heads(_joined(mixed_NBKGSW, 3)), OUTPUT_TAG)
    log_BKGS = tag(_joined(log_NBKGS, 3), OUTPUT_TAG)
    return mixed_BSHW, (query_BSHD, key_BTKD, value_BTKW, sinks_H, places, mixed_BSHW, log_BKGS)


def _backward(plan: Plan, kept: tuple[Any, ...], gradient_BSHW: jax.Array) -> tuple[Any, ...]:
    query_BSHD, key_BTKD, value_BTKW, sinks_H, places, mixed_BSHW, log_BKGS = kept
    kv_heads = key_BTKD.shape[2]
    query_BKGSD, key_BKTD, value_BKTW = by_head(query_BSHD, key_BTKD, value_BTKW)
    gradient_BKGSW = to_heads(gradient_BSHW, kv_heads)
    # The sum of shares times their gradients is the output times its gradient.
    product_BSHW = mixed_BSHW.astype(jnp.float32) * gradient_BSHW.astype(jnp.float32)
    mean_BKGS = to_heads(product_BSHW.sum(axis=-1, keepdims=True), kv_heads)[..., 0]

    def block(by_keys: Any, number: jax.Array) -> Any:
        rows = [_part(array, number, 3) for array in (query_BKGSD, gradient_BKGSW)]
        more = [_part(array, number, 3) for array in (log_BKGS, mean_BKGS)]

        def step(turn: jax.Array, totals: Any) -> Any:
            by_query, by_key, by_value = totals
            keys = _part(key_BKTD, turn, 2), _part(value_BKTW, turn, 2)
            parts = (rows[0], *keys, rows[1], *more)
            to_query, to_key, to_value = block_gradients(
                plan.rule, *_pairs(plan, places, number, turn), *parts
            )
            return (
                by_query + to_query,
                _added(by_key, to_key, turn),
                _added(by_value, to_value, turn),
            )

        start = (jnp.zeros(rows[0].shape), *by_keys)
        by_query, *by_keys = jax.lax.fori_loop(*_turns(plan, number), step, start)
        return tuple(by_keys), by_query.astype(query_BSHD.dtype)

    nothing = tuple(jnp.zeros(part.shape) for part in (key_BKTD, value_BKTW))
    blocks = jnp.arange(query_BSHD.shape[1] // BLOCK)
    (by_key, by_value), by_query = jax.lax.scan(block, nothing, blocks)
    return (
        from_heads(_joined(by_query, 3)),
        by_key.transpose(0, 2, 1, 3).astype(key_BTKD.dtype),
        by_value.transpose(0, 2, 1, 3).astype(value_BTKW.dtype),
        sinks_gradient(sinks_H, log_BKGS, mean_BKGS),
        None,
    )


_attend.defvjp(_forward, _backward)


def _turns(plan: Plan, number: jax.Array) -> tuple[jax.Array | int, jax.Array | int]:
    """Returns the first block of keys that a block of queries can see, and the first it cannot."""
    last = -(-plan.keys // BLOCK)
    mask = plan.rule.mask
    if not (plan.rule.aligned and mask.causal):
        return 0, last
    first = 0 if mask.reach is None else jnp.maximum(number * BLOCK - mask.reach + 1, 0) // BLOCK
    return first, jnp.minimum(number + 1, last)


def _pairs(
    plan: Plan, places: Places, number: jax.Array, turn: jax.Array
) -> tuple[Places, jax.Array]:
    """Returns where a block's queries and keys stand, and which pairs are allowed."""
    numbers = Places(number, turn, number, turn)
    here = jax.tree.map(
        lambda array, which: None if array is None else _part(array, which, 1),
        places,
        numbers,
        is_leaf=lambda leaf: leaf is None,
    )
    query_index_S, key_index_T = (which * BLOCK + jnp.arange(BLOCK) for which in (number, turn))
    allowed_BKTGS = allowed_in_block(plan.rule, here, query_index_S, key_index_T)
    # Of what fills the last blocks up, keys are seen by nothing, and queries see nothing.
    is_query_S, is_key_T = query_index_S < plan.queries, key_index_T < plan.keys
    return here, allowed_BKTGS & is_query_S & is_key_T[:, None, None]


def _filled(array: jax.Array) -> jax.Array:
    """Fills the second axis up with zeros to whole blocks."""
    missing = -array.shape[1] % BLOCK
    if not missing:
        return array
    return jnp.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)])


def _part(array: jax.Array, number: jax.Array, axis: int) -> jax.Array:
    """Returns one block of an array."""
    return jax.lax.dynamic_slice_in_dim(array, number * BLOCK, BLOCK, axis)


def _added(total_BKTD: jax.Array, part_BKTD: jax.Array, turn: jax.Array) -> jax.Array:
    """Adds to one block of keys, in place once compiled."""
    summed = _part(total_BKTD, turn, 2) + part_BKTD
    return jax.lax.dynamic_update_slice_in_dim(total_BKTD, summed, turn * BLOCK, 2)


def _joined(blocks: jax.Array, axis: int) -> jax.Array:
    """Puts blocks, which stand along a first axis, one after the other along another."""
    moved = jnp.moveaxis(blocks, 0, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
