"""Shared by the attention kernels: which calls none of them supports, and the shard of a device.

Batch and heads are sharded over devices, and a kernel runs on the shard of one device. A sharded
sequence needs communication between devices, so kernels refuse it. `ring` and `ulysses` are made
for it.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Band, Mask
from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.score_maps import ShardedHeadsBias, SoftCap
from dovetail.kernels.sharded import indivisible, logical_shard_map, mesh_axes, num_shards


def kernel_refusal(call: AttentionCall) -> str | None:
    """Returns why a kernel that masks by index cannot take a call, or None if it may."""
    if not call.aligned:
        return "queries and keys are not the same tokens, and it masks by index"
    if mesh_axes("sequence"):
        return "the sequence is sharded over devices"
    return paged_refusal(call) or scores_refusal(call) or _uneven(call)


def paged_refusal(call: AttentionCall) -> str | None:
    """Returns why an implementation for contiguous keys cannot take a call, or None if it can."""
    return None if call.block_table_BN is None else "keys and values are paged (a block table)"


def scores_refusal(call: AttentionCall) -> str | None:
    """Returns why a kernel cannot compute these scores and weights, or None if it can."""
    if call.mask.band is None:
        return f"{call.mask} is no band around the diagonal"
    if call.score_bias is not None:
        return f"it supports no score bias, and this is {call.bias_name}"
    if call.score_activation is not None:
        return f"it computes a softmax, not {call.score_activation}"
    return None


def score_map_refusal(call: AttentionCall) -> str | None:
    """Returns why a kernel whose only score map is a soft cap cannot take a call, or None."""
    if call.score_map is None or isinstance(call.score_map, SoftCap):
        return None
    return f"it supports no score map but SoftCap, and this is {call.score_map}"


def soft_cap(call: AttentionCall) -> float | None:
    """Returns the soft cap of a call that `score_map_refusal` accepts."""
    return call.score_map.cap if isinstance(call.score_map, SoftCap) else None


def sharded_sequence_refusal(call: AttentionCall) -> str | None:
    """Returns why context parallelism cannot take a call, or None if it can."""
    if not is_sequence_sharded():
        return "the sequence is not sharded over devices"
    if not call.aligned:
        return "queries and keys are not the same tokens"
    uneven = indivisible("tokens", call.q_BSHD.shape[1], "sequence") or _uneven(call)
    return paged_refusal(call) or uneven


def is_sequence_sharded() -> bool:
    """Returns whether the sequence is sharded over devices."""
    return bool(mesh_axes("sequence"))


def _uneven(call: AttentionCall) -> str | None:
    if num_shards("heads") != num_shards("kv_heads"):
        return (
            f"heads are sharded over {num_shards('heads')} devices, and KV heads over "
            f"{num_shards('kv_heads')}"
        )
    return (
        indivisible("rows of the batch", call.q_BSHD.shape[0], "batch")
        or indivisible("heads", call.q_BSHD.shape[2], "heads")
        or indivisible("KV heads", call.k_BTKD.shape[2], "kv_heads")
    )


def band_of(mask: Mask) -> Band:
    """Returns the band of a mask that `scores_refusal` accepts."""
    assert mask.band is not None
    return mask.band


def run_on_shards(kernel: Callable[[AttentionCall], jax.Array], call: AttentionCall) -> jax.Array:
    """Runs a kernel that masks by index on each device's shard, and zeroes the padding."""
    o_BSHW = shard_call(kernel, call.without("q_positions_BS"), None)
    return zero_padding(o_BSHW, call.q_segment_ids_BS)


def shard_call(
    function: Callable[[AttentionCall], jax.Array],
    call: AttentionCall,
    sequence: str | None,
    sinks_axis: str | tuple[str, ...] = "heads",
) -> jax.Array:
    """Runs a function on each device's shard of an aligned call: of batch, heads and sequence.

    Positions and segment ids of the keys are those of the queries, and are left out. The arrays of
    a score bias are replicated, so their gradients are summed over all shards.
    """
    tokens, q_axes = ("batch", sequence), ("batch", sequence, "heads", None)
    kv_axes = ("batch", sequence, "kv_heads", None)
    call = call.without("kv_positions_BT", "kv_segment_ids_BT")
    if call.score_bias is not None and mesh_axes("heads"):
        heads = call.q_BSHD.shape[2] // num_shards("heads")
        bias = ShardedHeadsBias(call.score_bias, mesh_axes("heads"), heads)
        call = dataclasses.replace(call, score_bias=bias)
    changes = {"q_positions_BS": tokens, "q_segment_ids_BS": tokens, "sinks_H": (sinks_axis,)}
    in_axes = call.with_qkv(q_axes, kv_axes, kv_axes, **changes, score_bias=())  # replicated
    o_BSHW: jax.Array = logical_shard_map(function, (in_axes,), q_axes)(call)
    return o_BSHW


def zero_padding(o_BSHW: jax.Array, segment_ids_BS: jax.Array | None) -> jax.Array:
    """Zeroes the output of padding. To a kernel, segment 0 is a segment like any other."""
    if segment_ids_BS is None:
        return o_BSHW
    return jnp.where((segment_ids_BS != 0)[..., None, None], o_BSHW, 0)
