"""Ulysses: context parallelism by all-to-all, over heads instead of tokens (arXiv 2309.14509).

Each device has all heads of a shard of the sequence. An all-to-all turns that into the whole
sequence of a shard of the heads; the best kernel for an unsharded sequence computes; and another
all-to-all turns the output back. So all devices have equal work under any mask. Where KV heads do
not divide over the devices, a KV head is sent to each device that has query heads of its group:
never more than an all-gather would send. Where query heads do not divide, `ring` runs.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.op import attention_op
from dovetail.kernels.attention.shards import is_sequence_sharded, sharded_sequence_refusal
from dovetail.kernels.registry import implementation
from dovetail.kernels.score_maps import ScoreBias
from dovetail.kernels.sharded import logical_shard_map, mesh_axes, num_shards


def _supports(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    *_: Any,
    aligned: bool,
    score_bias: ScoreBias | None = None,
    **__: Any,
) -> str | None:
    if score_bias is not None:
        return f"{score_bias} depends on the head, and heads would be sharded over devices"
    refusal = sharded_sequence_refusal(q_BSHD, k_BTKD, aligned)
    if refusal is not None:
        return refusal
    heads, kv_heads, devices = q_BSHD.shape[2], k_BTKD.shape[2], num_shards("sequence")
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
def ulysses(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    q_positions_BS: jax.Array,
    q_segment_ids_BS: jax.Array | None,
    sinks_H: jax.Array | None = None,
    **call: Any,
) -> jax.Array:
    """Computes attention between two all-to-alls; see `attention` for the arguments."""
    axes = mesh_axes("sequence")
    copies = kv_head_copies(k_BTKD.shape[2] // num_shards("kv_heads"), num_shards("sequence"))
    for name in ("kv_positions_BT", "kv_segment_ids_BT"):
        del call[name]  # those of the queries: the call is aligned

    def shard(q: Any, k: Any, v: Any, positions: Any, segment_ids: Any, sinks: Any) -> Any:
        k, v = (jnp.repeat(array, copies, axis=2) for array in (k, v))
        # All-to-all over heads (Ulysses): shard the heads, gather the sequence.
        qkv = [_all_to_all(array, axes, 2, 1) for array in (q, k, v)]
        positions, segment_ids = (_all_gather(array, axes) for array in (positions, segment_ids))
        o_BSHW = attention_op.redispatch(
            *qkv,
            q_positions_BS=positions,
            kv_positions_BT=positions,
            q_segment_ids_BS=segment_ids,
            kv_segment_ids_BT=segment_ids,
            sinks_H=sinks,
            **call,
        )
        return _all_to_all(o_BSHW, axes, 1, 2)  # gather the heads, shard the sequence

    token_axes, q_axes = ("batch", "sequence"), ("batch", "sequence", "heads", None)
    kv_axes = ("batch", "sequence", "kv_heads", None)
    in_axes = (q_axes, kv_axes, kv_axes, token_axes, token_axes, (("heads", "sequence"),))
    run = logical_shard_map(shard, in_axes, q_axes)
    arrays = (q_BSHD, k_BTKD, v_BTKW, q_positions_BS, q_segment_ids_BS, sinks_H)
    o_BSHW: jax.Array = run(*arrays)
    return o_BSHW


def _all_to_all(array: jax.Array, axes: tuple[str, ...], split: int, concat: int) -> jax.Array:
    return jax.lax.all_to_all(array, axes, split, concat, tiled=True)


def _all_gather(array: jax.Array | None, axes: tuple[str, ...]) -> jax.Array | None:
    return None if array is None else jax.lax.all_gather(array, axes, axis=1, tiled=True)
