"""Ulysses: context parallelism by all-to-all, over heads instead of tokens (arXiv 2309.14509).

Each device has all heads of a shard of the sequence. An all-to-all reshards from
sequence to heads, a kernel for an unsharded sequence computes, and another all-to-all reshards the
output back. So all devices have equal work under any mask. Where KV heads do
not divide over the devices, a KV head is sent to each device that has query heads of its group:
never more than an all-gather would send. Where query heads do not divide, `ring` runs.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.op import TOKEN_FIELDS, AttentionCall, attention_op
from dovetail.kernels.attention.shards import (
    is_sequence_sharded,
    shard_call,
    sharded_sequence_refusal,
)
from dovetail.kernels.dispatch import implementation
from dovetail.kernels.sharded import mesh_axes, num_shards


def _supports(call: AttentionCall) -> str | None:
    if call.score_bias is not None:
        return f"{call.bias_name} depends on the head, and heads would be sharded over devices"
    refusal = sharded_sequence_refusal(call)
    if refusal is not None:
        return refusal
    devices = num_shards("sequence")
    heads, kv_heads = call.q_BSHD.shape[2], call.k_BTKD.shape[2]
    if heads // kv_heads % kv_head_copies(kv_heads // num_shards("kv_heads"), devices):
        return (
            f"{heads} query heads over {kv_heads} KV heads do not divide over "
            f"{devices * num_shards('heads')} devices"
        )
    return None


def kv_head_copies(kv_heads: int, devices: int) -> int:
    """Returns to how many devices each KV head is sent, so that all get equally many."""
    return devices // math.gcd(kv_heads, devices)


@implementation("ulysses", supports=_supports, applies=is_sequence_sharded)
def ulysses(call: AttentionCall) -> jax.Array:
    """Computes attention between two all-to-alls."""
    axes = mesh_axes("sequence")
    copies = kv_head_copies(call.k_BTKD.shape[2] // num_shards("kv_heads"), num_shards("sequence"))

    def shard(call: AttentionCall) -> jax.Array:
        q, *kv = call.qkv
        k, v = (jnp.repeat(array, copies, axis=2) for array in kv)
        # All-to-all over heads (Ulysses): shard the heads, gather the sequence.
        qkv = [_all_to_all(array, axes, 2, 1) for array in (q, k, v)]
        positions, segment_ids = (
            _all_gather(array, axes) for array in (call.q_positions_BS, call.q_segment_ids_BS)
        )
        tokens = dict(
            zip(TOKEN_FIELDS, (positions, positions, segment_ids, segment_ids), strict=True)
        )
        o_BSHW = attention_op.redispatch(call.with_qkv(*qkv, **tokens))
        return _all_to_all(o_BSHW, axes, 1, 2)  # gather the heads, shard the sequence

    return shard_call(shard, call, "sequence", sinks_axis=("heads", "sequence"))


def _all_to_all(array: jax.Array, axes: tuple[str, ...], split: int, concat: int) -> jax.Array:
    return jax.lax.all_to_all(array, axes, split, concat, tiled=True)


def _all_gather(array: jax.Array | None, axes: tuple[str, ...]) -> jax.Array | None:
    return None if array is None else jax.lax.all_gather(array, axes, axis=1, tiled=True)
