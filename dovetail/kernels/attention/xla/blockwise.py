"""Blockwise attention: blocks of queries, each with only the keys that the mask can allow.

Where query and key indices mean the same tokens (`aligned`) and the mask is causal, the upper half
of the scores is never computed, nor the scores before a sliding window. The backward pass
recomputes the probabilities of each block from the logsumexp, as in FlashAttention
(https://arxiv.org/abs/2205.14135), so nothing quadratic is saved between the passes. Within a
pass memory is quadratic up to `SHORT` queries; longer sequences run in `looped`.

It consists of plain XLA operations, in the shapes at which CPU libraries are fastest.

B batch, S queries, T keys, H heads, K KV heads, G query heads per KV head, D width of queries and
keys, W width of values, R = G times S. Within a block S, T and R count the tokens of the block.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.flash import FlashPasses, Gradients, flash_attention
from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import FEW_QUERIES, AttentionCall
from dovetail.kernels.attention.shards import paged_refusal
from dovetail.kernels.attention.xla.looped import looped_attention
from dovetail.kernels.attention.xla.scores import (
    LOW,
    block_gradients,
    block_mask,
    block_scores,
    call_gradients,
    heads_first,
    init_bias_gradient,
    merge_heads,
    output_gradients,
    sinks_by_kv_head,
    weighted_values,
)
from dovetail.kernels.dispatch import current_platform, implementation
from dovetail.utils import cpu_cores

# Up to this many queries the program is unrolled over blocks; longer sequences run in loops.
SHORT = 4096


class QueryBlock(NamedTuple):
    """A range of queries, and the range of keys that they attend to."""

    start: int
    stop: int
    kv_start: int
    kv_stop: int


class BlockwisePlan(NamedTuple):
    """The static arguments: hashable."""

    blocks: tuple[QueryBlock, ...]
    max_in_flight: int


def _supports(call: AttentionCall) -> str | None:
    if call.q_BSHD.shape[1] <= FEW_QUERIES:
        return f"{call.q_BSHD.shape[1]} queries are too few to split"
    return paged_refusal(call)


def is_slow(*_: Any, **__: Any) -> bool:
    """Returns whether a platform has faster implementations than those in XLA operations."""
    return current_platform() != "cpu"


@implementation("blockwise", supports=_supports, slow=is_slow)
def blockwise(call: AttentionCall) -> jax.Array:
    """Computes attention block by block."""
    queries, keys = call.q_BSHD.shape[1], call.k_BTKD.shape[1]
    if queries > SHORT:
        return looped_attention(call)
    plan = BlockwisePlan(
        split_queries(queries, keys, call.mask, call.aligned),
        # Other platforms schedule the blocks themselves.
        max_in_flight=cpu_cores() if current_platform() == "cpu" else 0,
    )
    return flash_attention(FlashPasses(_forward, _backward, plan), call)


def split_queries(queries: int, keys: int, mask: Mask, aligned: bool) -> tuple[QueryBlock, ...]:
    """Splits the queries into blocks, each with the range of keys that it needs.

    Small blocks skip more and need less memory, but each one makes the program longer: 8 blocks of
    64 to 256, then 16 blocks however long the sequence is.
    """
    size = max(min(256, _ceil_div(queries, 8)), _ceil_div(queries, 16), 64)
    size = 64 * _ceil_div(size, 64)
    by_index = aligned and mask.causal
    reach = mask.reach if by_index else None
    blocks = []
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        kv_start = 0 if reach is None else max(0, start - reach + 1)
        blocks.append(QueryBlock(start, stop, kv_start, stop if by_index else keys))
    return tuple(blocks)


def _forward(plan: BlockwisePlan, call: AttentionCall) -> tuple[jax.Array, jax.Array]:
    q_BKGSD, k_BKTD, v_BKTW = heads_first(call)
    sinks_KG1 = sinks_by_kv_head(call, k_BKTD.shape[1])
    o_blocks: list[jax.Array] = []
    lse_blocks: list[jax.Array] = []
    for index, block in enumerate(plan.blocks):
        qkv: tuple[jax.Array, ...] = (
            q_BKGSD[:, :, :, block.start : block.stop],
            k_BKTD[:, :, block.kv_start : block.kv_stop],
            v_BKTW[:, :, block.kv_start : block.kv_stop],
        )
        if 0 < plan.max_in_flight <= index:
            qkv = _after(lse_blocks[index - plan.max_in_flight][:, :, 0, 0], *qkv)
        o, lse = _block_forward(call, block, sinks_KG1, *qkv)
        o_blocks.append(o)
        lse_blocks.append(lse)
    o_BSHW = merge_heads(jnp.concatenate(o_blocks, axis=3)).astype(call.q_BSHD.dtype)
    return o_BSHW, jnp.concatenate(lse_blocks, axis=3)


def _backward(
    plan: BlockwisePlan,
    call: AttentionCall,
    o_BSHW: jax.Array,
    lse_BKGS: jax.Array,
    do_BSHW: jax.Array,
) -> Gradients:
    # In a program with both passes, XLA would otherwise keep the scores of the first for this one.
    q_BSHD, do_BSHW = jax.lax.optimization_barrier((call.q_BSHD, do_BSHW))
    q_BKGSD, k_BKTD, v_BKTW = heads_first(dataclasses.replace(call, q_BSHD=q_BSHD))
    do_BKGSW, delta_BKGS = output_gradients(call, o_BSHW, do_BSHW)
    dq_blocks: list[jax.Array] = []
    finished: list[jax.Array] = []
    dk_BKTD, dv_BKTW = (jnp.zeros(array.shape, jnp.float32) for array in (k_BKTD, v_BKTW))
    dbias = init_bias_gradient(call)
    # From the last, so that the largest block comes first and the others reuse its memory.
    for index, block in enumerate(reversed(plan.blocks)):
        queries, keys = slice(block.start, block.stop), slice(block.kv_start, block.kv_stop)
        inputs: tuple[jax.Array, ...] = (
            q_BKGSD[:, :, :, queries],
            k_BKTD[:, :, keys],
            v_BKTW[:, :, keys],
            do_BKGSW[:, :, :, queries],
        )
        if plan.max_in_flight:
            waits = index >= plan.max_in_flight
            start_BK = do_BKGSW[:, :, 0, 0, 0]
            inputs = _after(finished[index - plan.max_in_flight] if waits else start_BK, *inputs)
        inputs = (*inputs, lse_BKGS[..., queries], delta_BKGS[..., queries])
        dq, dk, dv, dbias_add = block_gradients(*_block(call, block), *inputs)
        dq_blocks.append(dq)
        dk_BKTD = _add_at(dk_BKTD, dk, block.kv_start)
        dv_BKTW = _add_at(dv_BKTW, dv, block.kv_start)
        dbias = jax.tree.map(jnp.add, dbias, dbias_add)
        end_BK = dq[:, :, 0, 0, 0] + dk_BKTD[:, :, 0, 0] + dv_BKTW[:, :, 0, 0]
        for leaf in jax.tree.leaves(dbias):
            end_BK += leaf.ravel()[0]
        finished.append(end_BK)
    dq_BSHD = merge_heads(jnp.concatenate(dq_blocks[::-1], axis=3)).astype(q_BSHD.dtype)
    return call_gradients(call, dq_BSHD, dk_BKTD, dv_BKTW, dbias, lse_BKGS, delta_BKGS)


def _block_forward(
    call: AttentionCall,
    block: QueryBlock,
    sinks_KG1: jax.Array | None,
    q_BKGSD: jax.Array,
    k_BKTD: jax.Array,
    v_BKTW: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns the output of one block, and its logsumexp."""
    call, allowed_B1T1S = _block(call, block)
    s_BKTGS, _ = block_scores(call, q_BKGSD, k_BKTD)
    if call.score_activation is not None:
        p_BKTGS = jnp.where(allowed_B1T1S, call.score_activation(s_BKTGS), 0)
        o_BKRW = weighted_values(p_BKTGS, v_BKTW)
        no_lse_BKGS = jnp.zeros(q_BKGSD.shape[:-1], jnp.float32)
        return o_BKRW.reshape(*q_BKGSD.shape[:-1], -1), no_lse_BKGS
    s_BKTGS = jnp.where(allowed_B1T1S, s_BKTGS, LOW)
    m_BKGS = s_BKTGS.max(axis=2)
    if sinks_KG1 is not None:
        m_BKGS = jnp.maximum(m_BKGS, sinks_KG1)
    p_BKTGS = jnp.exp(s_BKTGS - m_BKGS[:, :, None])
    p_BKTGS = jnp.where(allowed_B1T1S, p_BKTGS, 0)
    l_BKGS = p_BKTGS.sum(axis=2)
    if sinks_KG1 is not None:
        l_BKGS += jnp.exp(sinks_KG1 - m_BKGS)
    # A query that attends to no key has l = 0 and p = 0, so its output is 0.
    l_BKGS = jnp.where(l_BKGS == 0, 1, l_BKGS)
    o_BKRW = weighted_values(p_BKTGS, v_BKTW)
    o_BKGSW = o_BKRW.reshape(*q_BKGSD.shape[:-1], -1) / l_BKGS[..., None]
    return o_BKGSW, m_BKGS + jnp.log(l_BKGS)


def _block(call: AttentionCall, block: QueryBlock) -> tuple[AttentionCall, jax.Array]:
    """Returns the call with the tokens of a block, and which of its pairs are allowed."""
    inside = call.map_tokens(
        lambda array: array[:, block.start : block.stop],
        lambda array: array[:, block.kv_start : block.kv_stop],
    )
    indices = jnp.arange(block.start, block.stop), jnp.arange(block.kv_start, block.kv_stop)
    return inside, block_mask(inside, *indices)


def _after(earlier_BK: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Makes a block wait for an earlier one, by adding a zero that seems to depend on it.

    Otherwise XLA on the CPU would start all blocks at once, each with buffers of its own; it drops
    `optimization_barrier`. This takes a third of the temporary memory, and is faster too: reused
    memory needs no new pages from the operating system.
    """
    zero_BK = earlier_BK < -jnp.inf  # never true, not even for NaN
    return tuple(
        array + jnp.expand_dims(zero_BK.astype(array.dtype), tuple(range(2, array.ndim)))
        for array in arrays
    )


def _add_at(total_BKTD: jax.Array, block: jax.Array, start: int) -> jax.Array:
    """Adds a block to a range of keys, in place once compiled."""
    stop = start + block.shape[2]
    summed = jax.lax.slice_in_dim(total_BKTD, start, stop, axis=2) + block
    return jax.lax.dynamic_update_slice_in_dim(total_BKTD, summed, start, axis=2)


def _ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)
