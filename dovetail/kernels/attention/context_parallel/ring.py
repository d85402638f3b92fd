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
    ChunkGradients,
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
    Gradients,
    backward_inputs,
    flash_attention,
)
from dovetail.kernels.attention.op import TOKEN_FIELDS, AttentionCall
from dovetail.kernels.attention.shards import (
    is_sequence_sharded,
    shard_call,
    sharded_sequence_refusal,
    zero_padding,
)
from dovetail.kernels.attention.xla.scores import init_bias_gradient, sinks_gradient_by_head
from dovetail.kernels.dispatch import implementation
from dovetail.kernels.sharded import mesh_axes, num_shards


class KVShard(NamedTuple):
    """What goes around the ring: keys, values, and the description of their tokens."""

    k_BSKD: jax.Array
    v_BSKW: jax.Array
    tokens: Any


# The axis of the tokens in outputs and in the inputs of the backward pass; elsewhere it is axis 1.
OUTPUT_AXES: Any = PartialOutput._make((1, 2))
BACKWARD_AXES: Any = BackwardInputs._make((1, 1, 2, 2))


@implementation("ring", supports=sharded_sequence_refusal, applies=is_sequence_sharded)
def ring(call: AttentionCall) -> jax.Array:
    """Computes attention on a ring of devices."""
    devices, axes = num_shards("sequence"), mesh_axes("sequence")
    layout = ring_layout(call.mask, axes, devices, call.q_BSHD.shape[1] // devices)
    chunks = chunk_op(call, layout)
    o_BSHW = shard_call(functools.partial(_run_on_shard, chunks), call, "sequence")
    return zero_padding(o_BSHW, call.q_segment_ids_BS)


def _run_on_shard(chunks: ChunkKernels, call: AttentionCall) -> jax.Array:
    """Runs one device's shard: from the order of the sequence into the layout, and back."""
    layout, tokens = chunks.layout, chunks.describe(call)
    arranged = call.without(*TOKEN_FIELDS).with_qkv(*(layout.arrange(x, 1) for x in call.qkv))
    return layout.restore(
        flash_attention(FlashPasses(_forward, _backward, chunks), arranged, tokens), 1
    )


def _forward(chunks: ChunkKernels, call: AttentionCall, tokens: Any) -> tuple[jax.Array, jax.Array]:
    layout, kv = chunks.layout, KVShard(*call.qkv[1:], tokens)
    device = jax.lax.axis_index(layout.axes)

    def compute(output: PartialOutput, kv: KVShard, owner: jax.Array | None) -> PartialOutput:
        for pair in layout.pairs(device, owner):
            output = _attend_to_chunk(chunks, call, output, tokens, kv, pair)
        return output

    def hop(step: jax.Array, carry: tuple[KVShard, PartialOutput]) -> tuple[KVShard, PartialOutput]:
        kv, output = carry
        # Keys and values are passed around the ring (ppermute) while these are computed with.
        return rotate(layout, kv), compute(output, kv, (device - step) % layout.devices)

    output = init_partial_output(call)
    if layout.hops:
        next_kv = rotate(layout, kv)
        output = compute(output, kv, None)
        next_kv, output = jax.lax.fori_loop(1, layout.hops, hop, (next_kv, output))
        output = compute(output, next_kv, (device - layout.hops) % layout.devices)
    else:
        output = compute(output, kv, None)
    output = add_sinks(call, output)
    return output.o_BSHW.astype(call.q_BSHD.dtype), output.lse_BHS


def _backward(
    chunks: ChunkKernels,
    call: AttentionCall,
    tokens: Any,
    o_BSHW: jax.Array,
    lse_BHS: jax.Array,
    do_BSHW: jax.Array,
) -> Gradients:
    layout, given = chunks.layout, backward_inputs(o_BSHW, do_BSHW, lse_BHS)
    kv = KVShard(*call.qkv[1:], tokens)
    device = jax.lax.axis_index(layout.axes)

    def compute(totals: ChunkGradients, kv: KVShard, owner: jax.Array | None) -> ChunkGradients:
        for pair in layout.pairs(device, owner):
            totals = _add_gradients(chunks, call, totals, tokens, given, kv, pair)
        return totals

    def hop(step: jax.Array, carry: Any) -> Any:
        kv, (dq, dk, dv, dbias) = carry
        # dk and dv travel with their keys.
        kv, (dk, dv) = rotate(layout, (kv, (dk, dv)))
        totals = ChunkGradients(dq, dk, dv, dbias)
        return kv, compute(totals, kv, (device - step) % layout.devices)

    dq, dk, dv = (jnp.zeros(array.shape) for array in call.qkv)
    init = ChunkGradients(dq, dk, dv, init_bias_gradient(call))
    carry = (kv, compute(init, kv, None))
    _, (dq, *dkv, dbias) = jax.lax.fori_loop(1, layout.hops + 1, hop, carry)
    dkv = rotate(layout, tuple(dkv), -layout.hops)  # back to the device that owns the keys
    totals = zip((dq, *dkv), call.qkv, strict=True)
    dq, dk, dv = (total.astype(array.dtype) for total, array in totals)
    return Gradients(dq, dk, dv, sinks_gradient_by_head(call, given), dbias)


def _attend_to_chunk(
    chunks: ChunkKernels,
    call: AttentionCall,
    output: PartialOutput,
    tokens: Any,
    kv: KVShard,
    pair: ChunkPair,
) -> PartialOutput:
    """Merges into the output what the queries of a pair get from its keys."""
    chunk = chunks.forward(*_chunk(call, tokens, kv, pair))
    before = _slice(output, pair.q_start, pair.length, OUTPUT_AXES)
    merged = merge_partial_outputs(call, before, chunk)
    return _update(output, merged, pair.q_start, OUTPUT_AXES)


def _add_gradients(
    chunks: ChunkKernels,
    call: AttentionCall,
    totals: ChunkGradients,
    tokens: Any,
    given: BackwardInputs,
    kv: KVShard,
    pair: ChunkPair,
) -> ChunkGradients:
    """Adds the gradients of one pair."""
    chunk = _chunk(call, tokens, kv, pair)
    given = _slice(given, pair.q_start, pair.length, BACKWARD_AXES)
    *gradients, dbias = chunks.backward(*chunk, given)
    starts = (pair.q_start, pair.kv_start, pair.kv_start)
    dq, dk, dv = (
        _update(total, _slice(total, start, pair.length) + gradient, start)
        for total, gradient, start in zip(totals[:3], gradients, starts, strict=True)
    )
    return ChunkGradients(dq, dk, dv, jax.tree.map(jnp.add, totals.dbias, dbias))


def _chunk(
    call: AttentionCall, tokens: Any, kv: KVShard, pair: ChunkPair
) -> tuple[AttentionCall, Any, Any]:
    """Returns the call of a pair, and the descriptions of its queries and keys."""
    q, q_tokens = _slice((call.q_BSHD, tokens), pair.q_start, pair.length)
    k, v, kv_tokens = _slice(kv, pair.kv_start, pair.length)
    return call.with_qkv(q, k, v), q_tokens, kv_tokens


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
