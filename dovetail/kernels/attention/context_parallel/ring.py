"""Ring attention: the sequence is sharded, and keys and values go around (arXiv 2310.01889).

Each device keeps its queries. Keys and values are sent from device to device (`ppermute`) while the
previous ones are computed with, so no device ever holds more than one other shard of them. No
scores are saved: the backward pass goes around once more, and dk and dv travel with the keys. Under
a causal mask devices would have unequal work; `layouts` balances it. The computation itself is an
implementation of `chunks.chunk_op`.

B batch, S queries, T keys (T = S here), H heads, K KV heads, D width of queries and keys, W width
of values. Within the ring S counts the tokens of a device.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.context_parallel.chunks import (
    ChunkKernels,
    PartialOutput,
    add_sinks,
    chunk_op,
    init_partial_output,
    merge_partial_outputs,
)
from dovetail.kernels.attention.context_parallel.layouts import ChunkPair, ring_layout, rotate
from dovetail.kernels.attention.flash import (
    BackwardInputs,
    FlashPasses,
    backward_inputs,
    flash_attention,
)
from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.shards import (
    is_sequence_sharded,
    sharded_sequence_refusal,
    zero_padding,
)
from dovetail.kernels.attention.xla.scores import AttentionSpec, sinks_gradient
from dovetail.kernels.registry import implementation
from dovetail.kernels.score_maps import ScoreBias, ScoreMap
from dovetail.kernels.sharded import logical_shard_map, mesh_axes, num_shards


class KVShard(NamedTuple):
    """What goes around the ring: keys, values, and the description of their tokens."""

    k_BSKD: jax.Array
    v_BSKW: jax.Array
    tokens: Any


# The axis of the tokens in outputs and in the inputs of the backward pass; elsewhere it is axis 1.
OUTPUT_AXES: Any = PartialOutput._make((1, 2))
BACKWARD_AXES: Any = BackwardInputs._make((1, 1, 2, 2))


def _supports(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    *_: Any,
    aligned: bool,
    score_bias: ScoreBias | None = None,
    **__: Any,
) -> str | None:
    if score_bias is not None and mesh_axes("heads"):
        return f"{score_bias} depends on the head, and heads are sharded over devices"
    return sharded_sequence_refusal(q_BSHD, k_BTKD, aligned)


@implementation("ring", supports=_supports, applies=is_sequence_sharded)
def ring(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    mask: Mask,
    q_positions_BS: jax.Array,
    q_segment_ids_BS: jax.Array | None,
    scale: float,
    score_map: ScoreMap | None = None,
    score_bias: ScoreBias | None = None,
    sinks_H: jax.Array | None = None,
    score_activation: ScoreMap | None = None,
    **_: Any,
) -> jax.Array:
    """Computes attention on a ring of devices; see `attention` for the arguments."""
    devices = num_shards("sequence")
    layout = ring_layout(mask, mesh_axes("sequence"), devices, q_BSHD.shape[1] // devices)
    chunks = chunk_op(
        q_BSHD,
        k_BTKD,
        v_BTKW,
        spec=AttentionSpec(mask, True, scale, score_map, score_bias, score_activation),
        layout=layout,
    )
    token_axes, q_axes = ("batch", "sequence"), ("batch", "sequence", "heads", None)
    kv_axes = ("batch", "sequence", "kv_heads", None)
    run = logical_shard_map(
        functools.partial(_run_on_shard, chunks),
        (q_axes, kv_axes, kv_axes, token_axes, token_axes, ("heads",)),
        q_axes,
    )
    o_BSHW: jax.Array = run(q_BSHD, k_BTKD, v_BTKW, q_positions_BS, q_segment_ids_BS, sinks_H)
    return zero_padding(o_BSHW, q_segment_ids_BS)


def _run_on_shard(
    chunks: ChunkKernels,
    q_BSHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKW: jax.Array,
    positions_BS: jax.Array,
    segment_ids_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> jax.Array:
    """Runs one device's shard: from the order of the sequence into the layout, and back."""
    layout, passes = chunks.layout, FlashPasses(_forward, _backward, chunks)
    tokens = chunks.describe(chunks, positions_BS, segment_ids_BS)
    q, k, v = (layout.arrange(array, 1) for array in (q_BSHD, k_BSKD, v_BSKW))
    return layout.restore(flash_attention(passes, q, k, v, tokens, sinks_H), 1)


def _forward(
    chunks: ChunkKernels,
    q_BSHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKW: jax.Array,
    tokens: Any,
    sinks_H: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    layout, queries, kv = chunks.layout, (q_BSHD, tokens), KVShard(k_BSKD, v_BSKW, tokens)
    device = jax.lax.axis_index(layout.axes)

    def compute(output: PartialOutput, kv: KVShard, owner: jax.Array | None) -> PartialOutput:
        for pair in layout.pairs(device, owner):
            output = _attend_to_chunk(chunks, output, queries, kv, pair)
        return output

    def hop(step: jax.Array, carry: tuple[KVShard, PartialOutput]) -> tuple[KVShard, PartialOutput]:
        kv, output = carry
        # Keys and values are passed around the ring (ppermute) while these are computed with.
        return rotate(layout, kv), compute(output, kv, (device - step) % layout.devices)

    output = init_partial_output(q_BSHD, v_BSKW)
    if layout.hops:
        next_kv = rotate(layout, kv)
        output = compute(output, kv, None)
        next_kv, output = jax.lax.fori_loop(1, layout.hops, hop, (next_kv, output))
        output = compute(output, next_kv, (device - layout.hops) % layout.devices)
    else:
        output = compute(output, kv, None)
    output = add_sinks(chunks.spec, output, sinks_H)
    return output.o_BSHW.astype(q_BSHD.dtype), output.lse_BHS


def _backward(
    chunks: ChunkKernels,
    q_BSHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKW: jax.Array,
    tokens: Any,
    sinks_H: jax.Array | None,
    o_BSHW: jax.Array,
    lse_BHS: jax.Array,
    do_BSHW: jax.Array,
) -> tuple[Any, ...]:
    layout, given = chunks.layout, backward_inputs(o_BSHW, do_BSHW, lse_BHS)
    queries, kv = (q_BSHD, tokens), KVShard(k_BSKD, v_BSKW, tokens)
    device = jax.lax.axis_index(layout.axes)

    def compute(totals: Any, kv: KVShard, owner: jax.Array | None) -> Any:
        for pair in layout.pairs(device, owner):
            totals = _add_gradients(chunks, totals, queries, given, kv, pair)
        return totals

    def hop(step: jax.Array, carry: Any) -> Any:
        kv, (dq, *dkv) = carry
        # dk and dv travel with their keys.
        kv, dkv = rotate(layout, kv), rotate(layout, dkv)
        return kv, compute((dq, *dkv), kv, (device - step) % layout.devices)

    init = tuple(jnp.zeros(array.shape) for array in (q_BSHD, k_BSKD, v_BSKW))
    carry = (kv, compute(init, kv, None))
    _, (dq, *dkv) = jax.lax.fori_loop(1, layout.hops + 1, hop, carry)
    dkv = rotate(layout, tuple(dkv), -layout.hops)  # back to the device that owns the keys
    dq_BSHD, dk_BSKD, dv_BSKW = (
        total.astype(array.dtype)
        for total, array in zip((dq, *dkv), (q_BSHD, k_BSKD, v_BSKW), strict=True)
    )
    # Each head has its own sink, as if no heads shared a KV head.
    dsinks_H = sinks_gradient(sinks_H, lse_BHS[:, :, None], given.delta_BHS[:, :, None])
    return dq_BSHD, dk_BSKD, dv_BSKW, None, dsinks_H


def _attend_to_chunk(
    chunks: ChunkKernels, output: PartialOutput, queries: Any, kv: KVShard, pair: ChunkPair
) -> PartialOutput:
    """Merges into the output what the queries of a pair get from its keys."""
    q, q_tokens = _slice(queries, pair.q_start, pair.length)
    k, v, kv_tokens = _slice(kv, pair.kv_start, pair.length)
    chunk = chunks.forward(chunks, q, k, v, q_tokens, kv_tokens)
    before = _slice(output, pair.q_start, pair.length, OUTPUT_AXES)
    merged = merge_partial_outputs(chunks.spec, before, chunk)
    return _update(output, merged, pair.q_start, OUTPUT_AXES)


def _add_gradients(
    chunks: ChunkKernels,
    totals: Any,
    queries: Any,
    given: BackwardInputs,
    kv: KVShard,
    pair: ChunkPair,
) -> tuple[jax.Array, ...]:
    """Adds dq, dk and dv of one pair."""
    q, q_tokens = _slice(queries, pair.q_start, pair.length)
    k, v, kv_tokens = _slice(kv, pair.kv_start, pair.length)
    given = _slice(given, pair.q_start, pair.length, BACKWARD_AXES)
    gradients = chunks.backward(chunks, q, k, v, q_tokens, kv_tokens, given)
    starts = (pair.q_start, pair.kv_start, pair.kv_start)
    return tuple(
        _update(total, _slice(total, start, pair.length) + gradient, start)
        for total, gradient, start in zip(totals, gradients, starts, strict=True)
    )


def _slice(arrays: Any, start: jax.Array | int, length: int, axes: Any = None) -> Any:
    return _map_with_axes(
        lambda array, axis: jax.lax.dynamic_slice_in_dim(array, start, length, axis), arrays, axes
    )


def _update(arrays: Any, updates: Any, start: jax.Array | int, axes: Any = None) -> Any:
    def update(array: jax.Array, axis: int, part: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(array, part, start, axis)

    return _map_with_axes(update, arrays, axes, updates)


def _map_with_axes(function: Any, arrays: Any, axes: Any, *more: Any) -> Any:
    """Maps a function over arrays and the axes of their tokens; None means axis 1 for all."""
    axes = jax.tree.map(lambda _: 1, arrays) if axes is None else axes
    return jax.tree.map(function, arrays, axes, *more)
