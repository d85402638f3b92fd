"""Attention in blocks of queries, each of which sees only the keys that the mask can allow.

Where query and key indices mean the same tokens (`aligned`) and the mask is causal, the upper half
of the scores is never computed, nor the far past of a window. The backward pass computes the
shares of each block again from the log of the softmax's denominator, as in FlashAttention
(https://arxiv.org/abs/2205.14135), so that between the passes nothing quadratic is kept.

It is made of plain XLA operations, in the shapes that the CPU's libraries are quickest at: scores
stand as [keys, queries], which makes four of the five products of the backward pass plain ones.

B batch, S queries, T keys, H heads, K key-value heads, G heads that share one, D head width, R = G
times S: a row for each query and head. Within a block S, T and R count what belongs to the block.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.hardware import cpu_cores
from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import OUTPUT_TAG, allowed_pairs, attention_op
from dovetail.kernels.attention.reference import FEW_QUERIES
from dovetail.kernels.registry import current_platform
from dovetail.parallel import tag

_LOW = float(jnp.finfo(jnp.float32).min)


class Block(NamedTuple):
    """A range of queries and the range of keys that they can see."""

    start: int
    stop: int
    key_start: int
    key_stop: int


class Plan(NamedTuple):
    """All that is known before any array: static, and so hashable."""

    mask: Mask
    aligned: bool
    scale: float
    blocks: tuple[Block, ...]
    in_flight: int


class Places(NamedTuple):
    """Where queries and keys stand."""

    query_positions_BS: jax.Array
    key_positions_BT: jax.Array
    query_segments_BS: jax.Array | None
    key_segments_BT: jax.Array | None


def _supports(query_BSHD: jax.Array, *_: Any, **__: Any) -> str | None:
    if query_BSHD.shape[1] <= FEW_QUERIES:
        return f"{query_BSHD.shape[1]} queries are too few to split"
    return None


@attention_op.register("blockwise", supports=_supports, before="reference")
def blockwise(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKD: jax.Array,
    *,
    mask: Mask,
    query_positions_BS: jax.Array,
    key_positions_BT: jax.Array,
    query_segments_BS: jax.Array | None,
    key_segments_BT: jax.Array | None,
    aligned: bool,
    scale: float,
) -> jax.Array:
    """Computes attention block by block; see `attention` for the arguments."""
    plan = Plan(
        mask,
        aligned,
        scale,
        plan_blocks(query_BSHD.shape[1], key_BTKD.shape[1], mask, aligned),
        # Other platforms keep to their own order.
        in_flight=cpu_cores() if current_platform() == "cpu" else 0,
    )
    places = Places(query_positions_BS, key_positions_BT, query_segments_BS, key_segments_BT)
    return _attend(plan, query_BSHD, key_BTKD, value_BTKD, places)


def plan_blocks(queries: int, keys: int, mask: Mask, aligned: bool) -> tuple[Block, ...]:
    """Splits the queries, and says which keys each block needs.

    Small blocks skip more and need less memory, but each one makes the program longer: 8 blocks of
    64 to 256, then 16 blocks however long the sequence is.
    """
    size = max(min(256, _divided(queries, 8)), _divided(queries, 16), 64)
    size = 64 * _divided(size, 64)
    by_index = aligned and mask.causal
    reach = mask.reach if by_index else None
    blocks = []
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        key_start = 0 if reach is None else max(0, start - reach + 1)
        blocks.append(Block(start, stop, key_start, stop if by_index else keys))
    return tuple(blocks)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    plan: Plan, query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKD: jax.Array, places: Places
) -> jax.Array:
    return _forward(plan, query_BSHD, key_BTKD, value_BTKD, places)[0]


def _forward(
    plan: Plan, query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKD: jax.Array, places: Places
) -> tuple[jax.Array, tuple[Any, ...]]:
    query_BKGSD, key_BKTD, value_BKTD = _by_head(query_BSHD, key_BTKD, value_BTKD)
    mixed: list[jax.Array] = []
    logs: list[jax.Array] = []
    for number, block in enumerate(plan.blocks):
        parts: tuple[jax.Array, ...] = (
            query_BKGSD[:, :, :, block.start : block.stop],
            key_BKTD[:, :, block.key_start : block.key_stop],
            value_BKTD[:, :, block.key_start : block.key_stop],
        )
        if 0 < plan.in_flight <= number:
            parts = _after(logs[number - plan.in_flight][:, :, 0, 0], *parts)
        mixed_BKGSD, log_BKGS = _block_forward(plan, block, places, *parts)
        mixed.append(mixed_BKGSD)
        logs.append(log_BKGS)
    mixed_BSHD = _from_heads(jnp.concatenate(mixed, axis=3)).astype(query_BSHD.dtype)
    # Both carry the tag: a policy that keeps the output spares the backward pass this one.
    mixed_BSHD = tag(mixed_BSHD, OUTPUT_TAG)
    log_BKGS = tag(jnp.concatenate(logs, axis=3), OUTPUT_TAG)
    return mixed_BSHD, (query_BSHD, key_BTKD, value_BTKD, places, mixed_BSHD, log_BKGS)


def _backward(plan: Plan, kept: tuple[Any, ...], gradient_BSHD: jax.Array) -> tuple[Any, ...]:
    query_BSHD, key_BTKD, value_BTKD, places, mixed_BSHD, log_BKGS = kept
    # Or else, in a program that holds both passes, XLA would keep the scores of the first for this.
    query_BSHD, gradient_BSHD = jax.lax.optimization_barrier((query_BSHD, gradient_BSHD))
    query_BKGSD, key_BKTD, value_BKTD = _by_head(query_BSHD, key_BTKD, value_BTKD)
    gradient_BKGSD = _to_heads(gradient_BSHD, key_BTKD.shape[2])
    # The sum of shares times their gradients is the output times its gradient.
    product_BSHD = mixed_BSHD.astype(jnp.float32) * gradient_BSHD.astype(jnp.float32)
    mean_BKGS = _to_heads(product_BSHD.sum(axis=-1, keepdims=True), key_BTKD.shape[2])[..., 0]
    by_query: list[jax.Array] = []
    finished: list[jax.Array] = []
    by_key, by_value = (jnp.zeros(key_BKTD.shape, jnp.float32) for _ in range(2))
    # From the last, so that the largest block comes first and the others reuse its memory.
    for number, block in enumerate(reversed(plan.blocks)):
        rows, seen = slice(block.start, block.stop), slice(block.key_start, block.key_stop)
        parts: tuple[jax.Array, ...] = (
            query_BKGSD[:, :, :, rows],
            key_BKTD[:, :, seen],
            value_BKTD[:, :, seen],
            gradient_BKGSD[:, :, :, rows],
        )
        if plan.in_flight:
            waits = number >= plan.in_flight
            begun_BK = gradient_BKGSD[:, :, 0, 0, 0]
            parts = _after(finished[number - plan.in_flight] if waits else begun_BK, *parts)
        parts = (*parts, log_BKGS[..., rows], mean_BKGS[..., rows])
        to_query, to_key, to_value = _block_backward(plan, block, places, *parts)
        by_query.append(to_query)
        by_key = _add_at(by_key, to_key, block.key_start)
        by_value = _add_at(by_value, to_value, block.key_start)
        finished.append(to_query[:, :, 0, 0, 0] + by_key[:, :, 0, 0] + by_value[:, :, 0, 0])
    return (
        _from_heads(jnp.concatenate(by_query[::-1], axis=3)).astype(query_BSHD.dtype),
        by_key.transpose(0, 2, 1, 3).astype(key_BTKD.dtype),
        by_value.transpose(0, 2, 1, 3).astype(value_BTKD.dtype),
        None,
    )


_attend.defvjp(_forward, _backward)


def _block_forward(
    plan: Plan,
    block: Block,
    places: Places,
    query_BKGSD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTD: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns the output of one block, and the log of the softmax's denominator."""
    allowed_BKTGS, score_BKTGS = _scores(plan, block, places, query_BKGSD, key_BKTD)
    top_BKGS = score_BKTGS.max(axis=2)
    share_BKTGS = jnp.exp(score_BKTGS - top_BKGS[:, :, None])
    share_BKTGS = jnp.where(allowed_BKTGS, share_BKTGS, 0)
    sum_BKGS = share_BKTGS.sum(axis=2)
    # A query that sees no key has a sum of 0, shares of 0, and so an output of 0.
    sum_BKGS = jnp.where(sum_BKGS == 0, 1, sum_BKGS)
    mixed_BKRD = _product(
        "bktr,bktd->bkrd", _rows(share_BKTGS, 3).astype(value_BKTD.dtype), value_BKTD
    )
    mixed_BKGSD = mixed_BKRD.reshape(query_BKGSD.shape) / sum_BKGS[..., None]
    return mixed_BKGSD, top_BKGS + jnp.log(sum_BKGS)


def _block_backward(
    plan: Plan,
    block: Block,
    places: Places,
    query_BKGSD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTD: jax.Array,
    gradient_BKGSD: jax.Array,
    log_BKGS: jax.Array,
    mean_BKGS: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns what one block adds to the gradients of queries, keys and values."""
    allowed_BKTGS, score_BKTGS = _scores(plan, block, places, query_BKGSD, key_BKTD)
    share_BKTGS = jnp.where(allowed_BKTGS, jnp.exp(score_BKTGS - log_BKGS[:, :, None]), 0)
    query_BKRD, gradient_BKRD = _rows(query_BKGSD, 2), _rows(gradient_BKGSD, 2)
    to_share_BKTR = _product("bktd,bkrd->bktr", value_BKTD, gradient_BKRD)
    centred_BKTGS = to_share_BKTR.reshape(share_BKTGS.shape) - mean_BKGS[:, :, None]
    to_score_BKTR = _rows(share_BKTGS * centred_BKTGS * plan.scale, 3).astype(key_BKTD.dtype)
    share_BKTR = _rows(share_BKTGS, 3).astype(value_BKTD.dtype)
    to_query_BKRD = _product("bktr,bktd->bkrd", to_score_BKTR, key_BKTD)
    to_key_BKTD = _product("bktr,bkrd->bktd", to_score_BKTR, query_BKRD)
    to_value_BKTD = _product("bktr,bkrd->bktd", share_BKTR, gradient_BKRD)
    return to_query_BKRD.reshape(query_BKGSD.shape), to_key_BKTD, to_value_BKTD


def _scores(
    plan: Plan, block: Block, places: Places, query_BKGSD: jax.Array, key_BKTD: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns which pairs of a block are allowed, and their scores (very low where not)."""
    rows, seen = slice(block.start, block.stop), slice(block.key_start, block.key_stop)
    query_segments, key_segments = places.query_segments_BS, places.key_segments_BT
    allowed_BTS = allowed_pairs(
        plan.mask,
        places.query_positions_BS[:, None, rows],
        places.key_positions_BT[:, seen, None],
        None if query_segments is None else query_segments[:, None, rows],
        None if key_segments is None else key_segments[:, seen, None],
        jnp.arange(block.start, block.stop) if plan.aligned else None,
        jnp.arange(block.key_start, block.key_stop)[:, None] if plan.aligned else None,
    )
    allowed_BKTGS = allowed_BTS[:, None, :, None]
    batch, kv_heads, shared, queries, _ = query_BKGSD.shape
    score_BKTR = _product("bktd,bkrd->bktr", key_BKTD, _rows(query_BKGSD, 2))
    score_BKTGS = score_BKTR.reshape(batch, kv_heads, -1, shared, queries) * plan.scale
    return allowed_BKTGS, jnp.where(allowed_BKTGS, score_BKTGS, _LOW)


def _after(earlier_BK: jax.Array, *parts: jax.Array) -> tuple[jax.Array, ...]:
    """Makes a block wait for an earlier one, by adding a zero that seems to depend on it.

    XLA on the CPU would otherwise start all blocks at once, each in memory of its own, and it drops
    `optimization_barrier`. So a third of the temporaries are enough, and it is faster too: memory
    that is used again needs no new pages from the operating system.
    """
    zero_BK = earlier_BK < -jnp.inf  # never true, not even for NaN
    return tuple(
        part + jnp.expand_dims(zero_BK.astype(part.dtype), tuple(range(2, part.ndim)))
        for part in parts
    )


def _by_head(
    query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKD: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    query_BKGSD = _to_heads(query_BSHD, key_BTKD.shape[2])
    return query_BKGSD, key_BTKD.transpose(0, 2, 1, 3), value_BTKD.transpose(0, 2, 1, 3)


def _to_heads(x_BSHD: jax.Array, kv_heads: int) -> jax.Array:
    """Turns [B, S, H, D] into [B, K, G, S, D]."""
    batch, queries, heads, width = x_BSHD.shape
    x_BSKGD = x_BSHD.reshape(batch, queries, kv_heads, heads // kv_heads, width)
    return x_BSKGD.transpose(0, 2, 3, 1, 4)


def _from_heads(x_BKGSD: jax.Array) -> jax.Array:
    """Turns [B, K, G, S, D] into [B, S, H, D]."""
    batch, kv_heads, shared, queries, width = x_BKGSD.shape
    return x_BKGSD.transpose(0, 3, 1, 2, 4).reshape(batch, queries, kv_heads * shared, width)


def _rows(array: jax.Array, axis: int) -> jax.Array:
    """Merges G and S, which stand at `axis` and after it, into R."""
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def _product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _add_at(total_BKTD: jax.Array, part_BKTD: jax.Array, start: int) -> jax.Array:
    """Adds to a range of keys, in place once compiled."""
    summed = jax.lax.slice_in_dim(total_BKTD, start, start + part_BKTD.shape[2], axis=2) + part_BKTD
    return jax.lax.dynamic_update_slice_in_dim(total_BKTD, summed, start, axis=2)


def _divided(number: int, by: int) -> int:
    """Divides, rounding up."""
    return -(-number // by)
