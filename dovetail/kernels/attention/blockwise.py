"""Attention in blocks of queries, each of which sees only the keys that the mask can allow.

Where query and key indices mean the same tokens (`aligned`) and the mask is causal, the upper half
of the scores is never computed, nor the far past of a window. The backward pass computes the
shares of each block again from the log of the softmax's denominator, as in FlashAttention
(https://arxiv.org/abs/2205.14135), so that between the passes nothing quadratic is kept. Within a
pass memory grows with the square up to `SHORT` queries; for more, see `looped`.

It is made of plain XLA operations, in the shapes that the CPU's libraries are quickest at: scores
stand as [keys, queries], which makes four of the five products of the backward pass plain ones.

B batch, S queries, T keys, H heads, K key-value heads, G heads that share one, D width of queries
and keys, W of values, R = G times S: a row for each query and head. Within a block S, T and R count
what belongs to the block.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.hardware import cpu_cores
from dovetail.kernels.attention.blocks import Block, plan_blocks
from dovetail.kernels.attention.looped import attend_in_loops
from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import OUTPUT_TAG, attention_op
from dovetail.kernels.attention.reference import FEW_QUERIES
from dovetail.kernels.attention.scores import (
    LOW,
    Places,
    Rule,
    allowed_in_block,
    biased,
    block_gradients,
    mapped,
    scaled_scores,
    sinks_by_head,
    sinks_gradient,
    weighed,
)
from dovetail.kernels.attention.shapes import add_at, by_head, from_heads, to_heads
from dovetail.kernels.registry import current_platform
from dovetail.kernels.score_maps import ScoreBias, ScoreMap
from dovetail.parallel import tag

# Up to so many queries all blocks are written out; for more there are loops.
SHORT = 4096


class Plan(NamedTuple):
    """All that is known before any array: static, and so hashable."""

    rule: Rule
    blocks: tuple[Block, ...]
    in_flight: int


def _supports(query_BSHD: jax.Array, *_: Any, **__: Any) -> str | None:
    if query_BSHD.shape[1] <= FEW_QUERIES:
        return f"{query_BSHD.shape[1]} queries are too few to split"
    return None


def _is_slow(*_: Any, **__: Any) -> bool:
    return current_platform() != "cpu"


@attention_op.register("blockwise", supports=_supports, slow=_is_slow, before="reference")
def blockwise(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    mask: Mask,
    query_positions_BS: jax.Array,
    key_positions_BT: jax.Array,
    query_segments_BS: jax.Array | None,
    key_segments_BT: jax.Array | None,
    aligned: bool,
    scale: float,
    score_map: ScoreMap | None = None,
    score_bias: ScoreBias | None = None,
    sinks_H: jax.Array | None = None,
    weigh: ScoreMap | None = None,
) -> jax.Array:
    """Computes attention block by block; see `attention` for the arguments."""
    rule = Rule(mask, aligned, scale, score_map, score_bias, weigh)
    places = Places(query_positions_BS, key_positions_BT, query_segments_BS, key_segments_BT)
    if query_BSHD.shape[1] > SHORT:
        return attend_in_loops(rule, query_BSHD, key_BTKD, value_BTKW, sinks_H, places)
    plan = Plan(
        rule,
        plan_blocks(query_BSHD.shape[1], key_BTKD.shape[1], mask, aligned),
        # Other platforms keep to their own order.
        in_flight=cpu_cores() if current_platform() == "cpu" else 0,
    )
    return _attend(plan, query_BSHD, key_BTKD, value_BTKW, sinks_H, places)


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
    mixed: list[jax.Array] = []
    logs: list[jax.Array] = []
    for number, block in enumerate(plan.blocks):
        parts: tuple[jax.Array, ...] = (
            query_BKGSD[:, :, :, block.start : block.stop],
            key_BKTD[:, :, block.key_start : block.key_stop],
            value_BKTW[:, :, block.key_start : block.key_stop],
        )
        if 0 < plan.in_flight <= number:
            parts = _after(logs[number - plan.in_flight][:, :, 0, 0], *parts)
        mixed_BKGSW, log_BKGS = _block_forward(plan, block, places, sinks_KG1, *parts)
        mixed.append(mixed_BKGSW)
        logs.append(log_BKGS)
    mixed_BSHW = from_heads(jnp.concatenate(mixed, axis=3)).astype(query_BSHD.dtype)
    # Both carry the tag: a policy that keeps the output spares the backward pass this one.
    mixed_BSHW = tag(mixed_BSHW, OUTPUT_TAG)
    log_BKGS = tag(jnp.concatenate(logs, axis=3), OUTPUT_TAG)
    return mixed_BSHW, (query_BSHD, key_BTKD, value_BTKW, sinks_H, places, mixed_BSHW, log_BKGS)


def _backward(plan: Plan, kept: tuple[Any, ...], gradient_BSHW: jax.Array) -> tuple[Any, ...]:
    query_BSHD, key_BTKD, value_BTKW, sinks_H, places, mixed_BSHW, log_BKGS = kept
    # Or else, in a program that holds both passes, XLA would keep the scores of the first for this.
    query_BSHD, gradient_BSHW = jax.lax.optimization_barrier((query_BSHD, gradient_BSHW))
    query_BKGSD, key_BKTD, value_BKTW = by_head(query_BSHD, key_BTKD, value_BTKW)
    gradient_BKGSW = to_heads(gradient_BSHW, key_BTKD.shape[2])
    # The sum of shares times their gradients is the output times its gradient.
    product_BSHW = mixed_BSHW.astype(jnp.float32) * gradient_BSHW.astype(jnp.float32)
    mean_BKGS = to_heads(product_BSHW.sum(axis=-1, keepdims=True), key_BTKD.shape[2])[..., 0]
    by_query: list[jax.Array] = []
    finished: list[jax.Array] = []
    by_key, by_value = (jnp.zeros(part.shape, jnp.float32) for part in (key_BKTD, value_BKTW))
    # From the last, so that the largest block comes first and the others reuse its memory.
    for number, block in enumerate(reversed(plan.blocks)):
        rows, seen = slice(block.start, block.stop), slice(block.key_start, block.key_stop)
        parts: tuple[jax.Array, ...] = (
            query_BKGSD[:, :, :, rows],
            key_BKTD[:, :, seen],
            value_BKTW[:, :, seen],
            gradient_BKGSW[:, :, :, rows],
        )
        if plan.in_flight:
            waits = number >= plan.in_flight
            begun_BK = gradient_BKGSW[:, :, 0, 0, 0]
            parts = _after(finished[number - plan.in_flight] if waits else begun_BK, *parts)
        parts = (*parts, log_BKGS[..., rows], mean_BKGS[..., rows])
        seen_by_block = _seen(plan, block, places)
        to_query, to_key, to_value = block_gradients(plan.rule, *seen_by_block, *parts)
        by_query.append(to_query)
        by_key = add_at(by_key, to_key, block.key_start)
        by_value = add_at(by_value, to_value, block.key_start)
        finished.append(to_query[:, :, 0, 0, 0] + by_key[:, :, 0, 0] + by_value[:, :, 0, 0])
    return (
        from_heads(jnp.concatenate(by_query[::-1], axis=3)).astype(query_BSHD.dtype),
        by_key.transpose(0, 2, 1, 3).astype(key_BTKD.dtype),
        by_value.transpose(0, 2, 1, 3).astype(value_BTKW.dtype),
        sinks_gradient(sinks_H, log_BKGS, mean_BKGS),
        None,
    )


_attend.defvjp(_forward, _backward)


def _block_forward(
    plan: Plan,
    block: Block,
    places: Places,
    sinks_KG1: jax.Array | None,
    query_BKGSD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTW: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns the output of one block, and the log of the softmax's denominator."""
    places, allowed_BKTGS = _seen(plan, block, places)
    rule = plan.rule
    score_BKTGS, _ = mapped(rule.score_map, scaled_scores(rule, query_BKGSD, key_BKTD))
    score_BKTGS = biased(rule, places, score_BKTGS)
    if rule.weigh is not None:
        share_BKTGS = jnp.where(allowed_BKTGS, rule.weigh(score_BKTGS), 0)
        mixed_BKRW = weighed(share_BKTGS, value_BKTW)
        no_log_BKGS = jnp.zeros(query_BKGSD.shape[:-1], jnp.float32)
        return mixed_BKRW.reshape(*query_BKGSD.shape[:-1], -1), no_log_BKGS
    score_BKTGS = jnp.where(allowed_BKTGS, score_BKTGS, LOW)
    top_BKGS = score_BKTGS.max(axis=2)
    if sinks_KG1 is not None:
        top_BKGS = jnp.maximum(top_BKGS, sinks_KG1)
    share_BKTGS = jnp.exp(score_BKTGS - top_BKGS[:, :, None])
    share_BKTGS = jnp.where(allowed_BKTGS, share_BKTGS, 0)
    sum_BKGS = share_BKTGS.sum(axis=2)
    if sinks_KG1 is not None:
        sum_BKGS += jnp.exp(sinks_KG1 - top_BKGS)
    # A query that sees no key has a sum of 0, shares of 0, and so an output of 0.
    sum_BKGS = jnp.where(sum_BKGS == 0, 1, sum_BKGS)
    mixed_BKRW = weighed(share_BKTGS, value_BKTW)
    mixed_BKGSW = mixed_BKRW.reshape(*query_BKGSD.shape[:-1], -1) / sum_BKGS[..., None]
    return mixed_BKGSW, top_BKGS + jnp.log(sum_BKGS)


def _seen(plan: Plan, block: Block, places: Places) -> tuple[Places, jax.Array]:
    """Returns where the queries and keys of a block stand, and which pairs are allowed."""
    rows, seen = slice(block.start, block.stop), slice(block.key_start, block.key_stop)
    query_segments, key_segments = places.query_segments_BS, places.key_segments_BT
    part = Places(
        places.query_positions_BS[:, rows],
        places.key_positions_BT[:, seen],
        None if query_segments is None else query_segments[:, rows],
        None if key_segments is None else key_segments[:, seen],
    )
    indices = jnp.arange(block.start, block.stop), jnp.arange(block.key_start, block.key_stop)
    return part, allowed_in_block(plan.rule, part, *indices)


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
