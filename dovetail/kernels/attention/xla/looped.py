"""Blockwise attention over long sequences: a loop over query blocks, and in it one over key blocks.

Unrolling the blocks, each with all its keys at once, is fastest for short sequences; but its memory
is quadratic. Here one block of scores is in memory at a time, by online softmax, and the program
does not grow with the sequence. A query block's loop covers only the key blocks that the mask can
allow.

B batch, S queries, T keys, H heads, K KV heads, G query heads per KV head, D width of queries and
keys, W width of values, N query blocks, M queries of a block. Where a function sees one block only,
S and T count the tokens of the block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.flash import FlashPasses, Gradients, flash_attention
from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.attention.xla.online_softmax import (
    SoftmaxState,
    finalize,
    init_softmax_state,
    online_softmax_update,
)
from dovetail.kernels.attention.xla.scores import (
    block_gradients,
    block_mask,
    call_gradients,
    heads_first,
    init_bias_gradient,
    merge_blocks,
    merge_heads,
    output_gradients,
    sinks_by_kv_head,
)

# Queries, and keys, of a block. Smaller blocks skip more, larger ones multiply faster.
BLOCK = 512


class LoopedPlan(NamedTuple):
    """The static arguments: the lengths before padding."""

    queries: int
    keys: int


def looped_attention(call: AttentionCall) -> jax.Array:
    """Computes attention by these loops."""
    plan = LoopedPlan(call.q_BSHD.shape[1], call.k_BTKD.shape[1])
    padded = call.with_qkv(*(_pad_to_block(array) for array in call.qkv))
    padded = padded.map_tokens(_pad_to_block, _pad_to_block)
    o_BSHW = flash_attention(FlashPasses(_forward, _backward, plan), padded)
    return o_BSHW[:, : plan.queries]


def _forward(plan: LoopedPlan, call: AttentionCall) -> tuple[jax.Array, jax.Array]:
    q_BKGSD, k_BKTD, v_BKTW = heads_first(call)
    sinks_KG1 = sinks_by_kv_head(call, k_BKTD.shape[1])

    def query_block(q_block: jax.Array) -> tuple[jax.Array, jax.Array]:
        q_BKGMD = _block(q_BKGSD, q_block, 3)

        def step(kv_block: jax.Array, state: SoftmaxState) -> SoftmaxState:
            kv = _block(k_BKTD, kv_block, 2), _block(v_BKTW, kv_block, 2)
            block = _pair(plan, call, q_block, kv_block)
            return online_softmax_update(*block, state, q_BKGMD, *kv)

        init = init_softmax_state(q_BKGMD.shape[:-1], v_BKTW.shape[-1])
        state = jax.lax.fori_loop(*_kv_blocks(plan, call, q_block), step, init)
        o_BKGMW, lse_BKGM = finalize(call, state, sinks_KG1)
        return o_BKGMW.astype(call.q_BSHD.dtype), lse_BKGM

    o_NBKGMW, lse_NBKGM = jax.lax.map(query_block, jnp.arange(call.q_BSHD.shape[1] // BLOCK))
    return merge_heads(merge_blocks(o_NBKGMW, 3)), merge_blocks(lse_NBKGM, 3)


def _backward(
    plan: LoopedPlan,
    call: AttentionCall,
    o_BSHW: jax.Array,
    lse_BKGS: jax.Array,
    do_BSHW: jax.Array,
) -> Gradients:
    q_BKGSD, k_BKTD, v_BKTW = heads_first(call)
    do_BKGSW, delta_BKGS = output_gradients(call, o_BSHW, do_BSHW)

    def query_block(totals: Any, q_block: jax.Array) -> Any:
        q, do = (_block(array, q_block, 3) for array in (q_BKGSD, do_BKGSW))
        lse, delta = (_block(array, q_block, 3) for array in (lse_BKGS, delta_BKGS))

        def step(kv_block: jax.Array, totals: Any) -> Any:
            dq, dk, dv, dbias = totals
            kv = _block(k_BKTD, kv_block, 2), _block(v_BKTW, kv_block, 2)
            block = _pair(plan, call, q_block, kv_block)
            added = block_gradients(*block, q, *kv, do, lse, delta)
            return (
                dq + added[0],
                _add_at(dk, added[1], kv_block),
                _add_at(dv, added[2], kv_block),
                jax.tree.map(jnp.add, dbias, added[3]),
            )

        init = (jnp.zeros(q.shape), *totals)
        dq, *totals = jax.lax.fori_loop(*_kv_blocks(plan, call, q_block), step, init)
        return tuple(totals), dq.astype(call.q_BSHD.dtype)

    init = (jnp.zeros(k_BKTD.shape), jnp.zeros(v_BKTW.shape), init_bias_gradient(call))
    blocks = jnp.arange(call.q_BSHD.shape[1] // BLOCK)
    totals, dq_NBKGMD = jax.lax.scan(query_block, init, blocks)
    dq_BSHD = merge_heads(merge_blocks(dq_NBKGMD, 3))
    return call_gradients(call, dq_BSHD, *totals, lse_BKGS, delta_BKGS)


def _kv_blocks(
    plan: LoopedPlan, call: AttentionCall, q_block: jax.Array
) -> tuple[jax.Array | int, jax.Array | int]:
    """Returns the range of key blocks that a query block can attend to."""
    last, mask = -(-plan.keys // BLOCK), call.mask
    if not (call.aligned and mask.causal):
        return 0, last
    first = 0 if mask.reach is None else jnp.maximum(q_block * BLOCK - mask.reach + 1, 0) // BLOCK
    return first, jnp.minimum(q_block + 1, last)


def _pair(
    plan: LoopedPlan, call: AttentionCall, q_block: jax.Array, kv_block: jax.Array
) -> tuple[AttentionCall, jax.Array]:
    """Returns the call with the tokens of a pair of blocks, and which of its pairs are allowed."""
    inside = call.map_tokens(
        lambda array: _block(array, q_block, 1), lambda array: _block(array, kv_block, 1)
    )
    q_index_S, kv_index_T = (block * BLOCK + jnp.arange(BLOCK) for block in (q_block, kv_block))
    allowed_B1T1S = block_mask(inside, q_index_S, kv_index_T)
    # Mask the padding of the last blocks.
    is_query_S, is_key_T = q_index_S < plan.queries, kv_index_T < plan.keys
    return inside, allowed_B1T1S & is_query_S & is_key_T[:, None, None]


def _pad_to_block(array: jax.Array) -> jax.Array:
    """Pads the second axis with zeros to a multiple of the block."""
    missing = -array.shape[1] % BLOCK
    if not missing:
        return array
    return jnp.pad(array, [(0, 0), (0, missing), *[(0, 0)] * (array.ndim - 2)])


def _block(array: jax.Array, index: jax.Array, axis: int) -> jax.Array:
    """Returns one block of an array."""
    return jax.lax.dynamic_slice_in_dim(array, index * BLOCK, BLOCK, axis)


def _add_at(total_BKTD: jax.Array, block: jax.Array, index: jax.Array) -> jax.Array:
    """Adds to one block of keys, in place once compiled."""
    summed = _block(total_BKTD, index, 2) + block
    return jax.lax.dynamic_update_slice_in_dim(total_BKTD, summed, index * BLOCK, 2)
