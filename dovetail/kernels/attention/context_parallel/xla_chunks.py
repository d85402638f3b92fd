"""Chunks of a ring in XLA operations, one block of scores at a time: any mask, map or bias.

B batch, S queries, T keys, H heads, K KV heads, G query heads per KV head, D width of queries and
keys, W width of values.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.context_parallel.chunks import (
    ChunkGradients,
    ChunkKernels,
    PartialOutput,
)
from dovetail.kernels.attention.context_parallel.layouts import RingLayout
from dovetail.kernels.attention.flash import BackwardInputs
from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.attention.xla.blockwise import is_slow
from dovetail.kernels.attention.xla.online_softmax import (
    SoftmaxState,
    finalize,
    init_softmax_state,
    online_softmax_update,
)
from dovetail.kernels.attention.xla.scores import (
    block_gradients,
    block_mask,
    heads_first,
    init_bias_gradient,
    merge_blocks,
    merge_heads,
    split_heads,
)
from dovetail.kernels.dispatch import implementation

# Queries, and keys, of a block: at most the square of this many scores are in memory at once.
BLOCK = 512


class ChunkTokens(NamedTuple):
    """The positions, segment ids and indices of a range of tokens."""

    positions_BS: jax.Array
    segment_ids_BS: jax.Array
    index_1S: jax.Array


# The axis of the tokens in each array, with the heads first.
TOKEN_AXES: Any = ChunkTokens._make((1, 1, 1))
Q_AXES, KV_AXES = (3, TOKEN_AXES), (2, 2, TOKEN_AXES)


@implementation("reference", slow=is_slow)
def reference(call: AttentionCall, layout: RingLayout) -> ChunkKernels:
    """Returns the passes over blocks."""
    return XLAChunks(layout)


class XLAChunks(ChunkKernels):
    """The passes over blocks."""

    def describe(self, call: AttentionCall) -> ChunkTokens:
        """Returns positions, segment ids and indices."""
        layout, positions, segment_ids = self.layout, call.q_positions_BS, call.q_segment_ids_BS
        if segment_ids is None:
            segment_ids = jnp.ones_like(positions)
        index_S = layout.index(jax.lax.axis_index(layout.axes))
        positions, segment_ids = (layout.arrange(array, 1) for array in (positions, segment_ids))
        return ChunkTokens(positions, segment_ids, index_S[None])

    def forward(
        self, call: AttentionCall, queries: ChunkTokens, keys: ChunkTokens
    ) -> PartialOutput:
        """Returns the output by online softmax."""
        q, *kv = heads_first(call)
        kv_blocks = _split_blocks((*kv, keys), KV_AXES)

        def query_block(q_block: tuple[jax.Array, ChunkTokens]) -> tuple[jax.Array, jax.Array]:
            q_BKGSD, q_tokens = q_block

            def step(state: SoftmaxState, kv_block: Any) -> tuple[SoftmaxState, None]:
                block = _pair(call, q_tokens, kv_block[2])
                return online_softmax_update(*block, state, q_BKGSD, *kv_block[:2]), None

            init = init_softmax_state(q_BKGSD.shape[:-1], call.v_BTKW.shape[3])
            return finalize(call, jax.lax.scan(step, init, kv_blocks)[0], None)

        outputs = jax.lax.map(query_block, _split_blocks((q, queries), Q_AXES))
        o_BKGSW, lse_BKGS = (merge_blocks(array, 3) for array in outputs)
        batch, _, heads, _ = call.q_BSHD.shape
        return PartialOutput(merge_heads(o_BKGSW), lse_BKGS.reshape(batch, heads, -1))

    def backward(
        self,
        call: AttentionCall,
        queries: ChunkTokens,
        keys: ChunkTokens,
        given: BackwardInputs,
    ) -> ChunkGradients:
        """Returns the gradients, block by block."""
        q, *kv = heads_first(call)
        do = split_heads(given.do_BSHW, call.k_BTKD.shape[2])
        rows = (do, given.lse_BHS.reshape(q.shape[:-1]), given.delta_BHS.reshape(q.shape[:-1]))
        q_blocks = _split_blocks((q, queries, rows), (*Q_AXES, (3, 3, 3)))
        kv_blocks = _split_blocks((*kv, keys), KV_AXES)

        def query_block(totals: Any, q_block: Any) -> Any:
            q_BKGSD, q_tokens, rows = q_block
            dkv, dbias = totals

            def step(carry: Any, kv_block: Any) -> Any:
                block = _pair(call, q_tokens, kv_block[2])
                dq, dk, dv, dbias = block_gradients(*block, q_BKGSD, *kv_block[:2], *rows)
                return jax.tree.map(jnp.add, carry, (dq, dbias)), (dk, dv)

            init = (jnp.zeros(q_BKGSD.shape), dbias)
            (dq, dbias), dkv_blocks = jax.lax.scan(step, init, kv_blocks)
            return (jax.tree.map(jnp.add, dkv, dkv_blocks), dbias), dq

        dkv = tuple(jnp.zeros(array.shape) for array in kv_blocks[:2])
        (dkv, dbias), dq = jax.lax.scan(query_block, (dkv, init_bias_gradient(call)), q_blocks)
        dk, dv = (array.swapaxes(1, 2) for array in [merge_blocks(array, 2) for array in dkv])
        return ChunkGradients(merge_heads(merge_blocks(dq, 3)), dk, dv, dbias)


def _pair(
    call: AttentionCall, queries: ChunkTokens, keys: ChunkTokens
) -> tuple[AttentionCall, jax.Array]:
    """Returns the call with the tokens of a pair of blocks, and which of its pairs are allowed."""
    inside = dataclasses.replace(
        call,
        q_positions_BS=queries.positions_BS,
        kv_positions_BT=keys.positions_BS,
        q_segment_ids_BS=queries.segment_ids_BS,
        kv_segment_ids_BT=keys.segment_ids_BS,
    )
    return inside, block_mask(inside, queries.index_1S[0], keys.index_1S[0])


def block_size(length: int) -> int:
    """Returns the tokens of a block: the largest divisor of the length, up to a limit."""
    return next(size for size in range(min(length, BLOCK), 0, -1) if length % size == 0)


def _split_blocks(arrays: Any, axes: Any) -> Any:
    """Splits the tokens of arrays into blocks, along a new leading axis."""

    def split(array: jax.Array, axis: int) -> jax.Array:
        size = block_size(array.shape[axis])
        shape = (*array.shape[:axis], -1, size, *array.shape[axis + 1 :])
        return jnp.moveaxis(array.reshape(shape), axis, 0)

    return jax.tree.map(split, arrays, axes)
