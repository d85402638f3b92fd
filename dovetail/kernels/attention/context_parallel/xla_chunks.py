"""Chunks of a ring in XLA operations, one block of scores at a time: any mask, map or bias.

B batch, S queries, T keys, H heads, K KV heads, G query heads per KV head, D width of queries and
keys, W width of values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.context_parallel.chunks import ChunkKernels, PartialOutput
from dovetail.kernels.attention.context_parallel.layouts import RingLayout
from dovetail.kernels.attention.flash import BackwardInputs
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
    split_heads,
)
from dovetail.kernels.registry import current_platform, implementation

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


def _is_slow(*_: Any, **__: Any) -> bool:
    return current_platform() != "cpu"


@implementation("reference", slow=_is_slow)
def reference(*_: Any, spec: AttentionSpec, layout: RingLayout) -> ChunkKernels:
    """Returns the passes over blocks."""
    return ChunkKernels(_describe, _forward, _backward, spec, layout)


def _describe(
    chunks: ChunkKernels, positions_BS: jax.Array, segment_ids_BS: jax.Array | None
) -> ChunkTokens:
    layout = chunks.layout
    if segment_ids_BS is None:
        segment_ids_BS = jnp.ones_like(positions_BS)
    index_S = layout.index(jax.lax.axis_index(layout.axes))
    positions_BS, segment_ids_BS = (
        layout.arrange(array, 1) for array in (positions_BS, segment_ids_BS)
    )
    return ChunkTokens(positions_BS, segment_ids_BS, index_S[None])


def _forward(
    chunks: ChunkKernels,
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    queries: ChunkTokens,
    keys: ChunkTokens,
) -> PartialOutput:
    spec, value_width = chunks.spec, v_BTKW.shape[3]
    q, *kv = heads_first(q_BSHD, k_BTKD, v_BTKW)
    kv_blocks = _split_blocks((*kv, keys), KV_AXES)

    def query_block(q_block: tuple[jax.Array, ChunkTokens]) -> tuple[jax.Array, jax.Array]:
        q_BKGSD, q_tokens = q_block

        def step(state: SoftmaxState, kv_block: Any) -> tuple[SoftmaxState, None]:
            mask = _block_mask(spec, q_tokens, kv_block[2])
            return online_softmax_update(spec, *mask, state, q_BKGSD, *kv_block[:2]), None

        init = init_softmax_state(q_BKGSD.shape[:-1], value_width)
        return finalize(spec, jax.lax.scan(step, init, kv_blocks)[0], None)

    outputs = jax.lax.map(query_block, _split_blocks((q, queries), Q_AXES))
    o_BKGSW, lse_BKGS = _merge_blocks(outputs, (3, 3))
    batch, _, heads, _ = q_BSHD.shape
    return PartialOutput(merge_heads(o_BKGSW), lse_BKGS.reshape(batch, heads, -1))


def _backward(
    chunks: ChunkKernels,
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    queries: ChunkTokens,
    keys: ChunkTokens,
    given: BackwardInputs,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    spec, kv_heads = chunks.spec, k_BTKD.shape[2]
    q, *kv = heads_first(q_BSHD, k_BTKD, v_BTKW)
    shape = q.shape[:-1]
    do = split_heads(given.do_BSHW, kv_heads)
    rows = (do, given.lse_BHS.reshape(shape), given.delta_BHS.reshape(shape))
    q_blocks = _split_blocks((q, queries, rows), (*Q_AXES, (3, 3, 3)))
    kv_blocks = _split_blocks((*kv, keys), KV_AXES)

    def query_block(dkv: Any, q_block: Any) -> Any:
        q_BKGSD, q_tokens, rows = q_block

        def step(dq: jax.Array, kv_block: Any) -> Any:
            mask = _block_mask(spec, q_tokens, kv_block[2])
            gradients = block_gradients(spec, *mask, q_BKGSD, *kv_block[:2], *rows)
            return dq + gradients[0], gradients[1:]

        dq, dkv_blocks = jax.lax.scan(step, jnp.zeros(q_BKGSD.shape), kv_blocks)
        return jax.tree.map(jnp.add, dkv, dkv_blocks), dq

    init = tuple(jnp.zeros(array.shape) for array in kv_blocks[:2])
    dkv, dq = jax.lax.scan(query_block, init, q_blocks)
    dk, dv = (array.swapaxes(1, 2) for array in _merge_blocks(dkv, (2, 2)))
    return merge_heads(_merge_blocks(dq, 3)), dk, dv


def _block_mask(
    spec: AttentionSpec, queries: ChunkTokens, keys: ChunkTokens
) -> tuple[QKPositions, jax.Array]:
    """Returns the positions of a pair of blocks, and which of its pairs are allowed."""
    positions = QKPositions(
        queries.positions_BS, keys.positions_BS, queries.segment_ids_BS, keys.segment_ids_BS
    )
    return positions, block_mask(spec, positions, queries.index_1S[0], keys.index_1S[0])


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


def _merge_blocks(blocks: Any, axes: Any) -> Any:
    """Undoes `_split_blocks`."""

    def merge(array: jax.Array, axis: int) -> jax.Array:
        moved = jnp.moveaxis(array, 0, axis)
        return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])

    return jax.tree.map(merge, blocks, axes)
