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

from dovetail.kernels.attention.flash import FlashPasses, flash_attention
from dovetail.kernels.attention.xla.online_softmax import (
    SoftmaxState,
    finalize,
    init_softmax_state,
    online_softmax_update,
)
from dovetail.kernels.attention.xla.scores import (
    AttentionSpec,
    QKPositions,
    block_gradients,
    block_mask,
    heads_first,
    merge_heads,
    sinks_by_kv_head,
    sinks_gradient,
    split_heads,
)

# Queries, and keys, of a block. Smaller blocks skip more, larger ones multiply faster.
BLOCK = 512


class LoopedPlan(NamedTuple):
    """The static arguments: hashable. The lengths are those before padding."""

    spec: AttentionSpec
    queries: int
    keys: int


def looped_attention(
    spec: AttentionSpec,
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    sinks_H: jax.Array | None,
    positions: QKPositions,
) -> jax.Array:
    """Computes attention by these loops; see `attention` for the arguments."""
    plan = LoopedPlan(spec, q_BSHD.shape[1], k_BTKD.shape[1])
    q_BSHD = _pad_to_block(q_BSHD)
    k_BTKD, v_BTKW = _pad_to_block(k_BTKD), _pad_to_block(v_BTKW)
    positions = jax.tree.map(_pad_to_block, positions)
    passes = FlashPasses(_forward, _backward, plan)
    o_BSHW = flash_attention(passes, q_BSHD, k_BTKD, v_BTKW, sinks_H, positions)
    return o_BSHW[:, : plan.queries]


def _forward(
    plan: LoopedPlan,
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    sinks_H: jax.Array | None,
    positions: QKPositions,
) -> tuple[jax.Array, jax.Array]:
    q_BKGSD, k_BKTD, v_BKTW = heads_first(q_BSHD, k_BTKD, v_BTKW)
    sinks_KG1 = sinks_by_kv_head(sinks_H, k_BTKD.shape[2])

    def query_block(q_block: jax.Array) -> tuple[jax.Array, jax.Array]:
        q_BKGMD = _block(q_BKGSD, q_block, 3)

        def step(kv_block: jax.Array, state: SoftmaxState) -> SoftmaxState:
            kv = _block(k_BKTD, kv_block, 2), _block(v_BKTW, kv_block, 2)
            mask = _block_mask(plan, positions, q_block, kv_block)
            return online_softmax_update(plan.spec, *mask, state, q_BKGMD, *kv)

        init = init_softmax_state(q_BKGMD.shape[:-1], v_BKTW.shape[-1])
        state = jax.lax.fori_loop(*_kv_blocks(plan, q_block), step, init)
        o_BKGMW, lse_BKGM = finalize(plan.spec, state, sinks_KG1)
        return o_BKGMW.astype(q_BSHD.dtype), lse_BKGM

    o_NBKGMW, lse_NBKGM = jax.lax.map(query_block, jnp.arange(q_BSHD.shape[1] // BLOCK))
    return merge_heads(_merge_blocks(o_NBKGMW, 3)), _merge_blocks(lse_NBKGM, 3)


def _backward(
    plan: LoopedPlan,
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    sinks_H: jax.Array | None,
    positions: QKPositions,
    o_BSHW: jax.Array,
    lse_BKGS: jax.Array,
    do_BSHW: jax.Array,
) -> tuple[Any, ...]:
    kv_heads = k_BTKD.shape[2]
    q_BKGSD, k_BKTD, v_BKTW = heads_first(q_BSHD, k_BTKD, v_BTKW)
    do_BKGSW = split_heads(do_BSHW, kv_heads)
    # delta = sum(o * do), which equals the sum of p times dp.
    product_BSHW = o_BSHW.astype(jnp.float32) * do_BSHW.astype(jnp.float32)
    delta_BKGS = split_heads(product_BSHW.sum(axis=-1, keepdims=True), kv_heads)[..., 0]

    def query_block(dkv: Any, q_block: jax.Array) -> Any:
        q, do = (_block(array, q_block, 3) for array in (q_BKGSD, do_BKGSW))
        lse, delta = (_block(array, q_block, 3) for array in (lse_BKGS, delta_BKGS))

        def step(kv_block: jax.Array, totals: Any) -> Any:
            dq, dk, dv = totals
            kv = _block(k_BKTD, kv_block, 2), _block(v_BKTW, kv_block, 2)
            mask = _block_mask(plan, positions, q_block, kv_block)
            dq_add, dk_add, dv_add = block_gradients(plan.spec, *mask, q, *kv, do, lse, delta)
            return (dq + dq_add, _add_at(dk, dk_add, kv_block), _add_at(dv, dv_add, kv_block))

        init = (jnp.zeros(q.shape), *dkv)
        dq, *dkv = jax.lax.fori_loop(*_kv_blocks(plan, q_block), step, init)
        return tuple(dkv), dq.astype(q_BSHD.dtype)

    init = tuple(jnp.zeros(array.shape) for array in (k_BKTD, v_BKTW))
    blocks = jnp.arange(q_BSHD.shape[1] // BLOCK)
    (dk_BKTD, dv_BKTW), dq_NBKGMD = jax.lax.scan(query_block, init, blocks)
    return (
        merge_heads(_merge_blocks(dq_NBKGMD, 3)),
        dk_BKTD.transpose(0, 2, 1, 3).astype(k_BTKD.dtype),
        dv_BKTW.transpose(0, 2, 1, 3).astype(v_BTKW.dtype),
        sinks_gradient(sinks_H, lse_BKGS, delta_BKGS),
        None,
    )


def _kv_blocks(plan: LoopedPlan, q_block: jax.Array) -> tuple[jax.Array | int, jax.Array | int]:
    """Returns the range of key blocks that a query block can attend to."""
    last = -(-plan.keys // BLOCK)
    mask = plan.spec.mask
    if not (plan.spec.aligned and mask.causal):
        return 0, last
    first = 0 if mask.reach is None else jnp.maximum(q_block * BLOCK - mask.reach + 1, 0) // BLOCK
    return first, jnp.minimum(q_block + 1, last)


def _block_mask(
    plan: LoopedPlan, positions: QKPositions, q_block: jax.Array, kv_block: jax.Array
) -> tuple[QKPositions, jax.Array]:
    """Returns the positions of a pair of blocks, and which of its pairs are allowed."""
    inside = jax.tree.map(
        lambda array, block: None if array is None else _block(array, block, 1),
        positions,
        QKPositions(q_block, kv_block, q_block, kv_block),
        is_leaf=lambda leaf: leaf is None,
    )
    q_index_S, kv_index_T = (block * BLOCK + jnp.arange(BLOCK) for block in (q_block, kv_block))
    allowed_B1T1S = block_mask(plan.spec, inside, q_index_S, kv_index_T)
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


def _merge_blocks(blocks: jax.Array, axis: int) -> jax.Array:
    """Merges the leading axis of blocks into another axis."""
    moved = jnp.moveaxis(blocks, 0, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])
