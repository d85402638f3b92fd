"""Shared by the attention kernels: which calls none of them supports, and the shard of a device.

Batch and heads are sharded over devices, and a kernel runs on the shard of one device. A sharded
sequence needs communication between devices, so kernels refuse it. `ring` and `ulysses` are made
for it.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Band, Mask
from dovetail.kernels.sharded import indivisible, logical_shard_map, mesh_axes, num_shards

ShardKernel = Callable[..., jax.Array]
"""From q_BSHD, k_BTKD, v_BTKW, segment_ids_BS and sinks_H (or None) of a shard to o_BSHW."""


def kernel_refusal(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    *_: Any,
    mask: Mask,
    aligned: bool,
    score_bias: Any = None,
    score_activation: Any = None,
    **__: Any,
) -> str | None:
    """Returns why a kernel that masks by index cannot take a call, or None if it may."""
    if not aligned:
        return "queries and keys are not the same tokens, and it masks by index"
    if mesh_axes("sequence"):
        return "the sequence is sharded over devices"
    return spec_refusal(mask, score_bias, score_activation) or _uneven(q_BSHD, k_BTKD)


def spec_refusal(mask: Mask, score_bias: Any, score_activation: Any) -> str | None:
    """Returns why a kernel cannot compute these scores and weights, or None if it can."""
    if mask.band is None:
        return f"{mask} is no band around the diagonal"
    if score_bias is not None:
        return f"it supports no score bias, and this is {score_bias}"
    if score_activation is not None:
        return f"it computes a softmax, not {score_activation}"
    return None


def sharded_sequence_refusal(q_BSHD: jax.Array, k_BTKD: jax.Array, aligned: bool) -> str | None:
    """Returns why context parallelism cannot take a call, or None if it can."""
    if not is_sequence_sharded():
        return "the sequence is not sharded over devices"
    if not aligned:
        return "queries and keys are not the same tokens"
    return indivisible("tokens", q_BSHD.shape[1], "sequence") or _uneven(q_BSHD, k_BTKD)


def is_sequence_sharded() -> bool:
    """Returns whether the sequence is sharded over devices."""
    return bool(mesh_axes("sequence"))


def _uneven(q_BSHD: jax.Array, k_BTKD: jax.Array) -> str | None:
    if num_shards("heads") != num_shards("kv_heads"):
        return (
            f"heads are sharded over {num_shards('heads')} devices, and KV heads over "
            f"{num_shards('kv_heads')}"
        )
    return (
        indivisible("rows of the batch", q_BSHD.shape[0], "batch")
        or indivisible("heads", q_BSHD.shape[2], "heads")
        or indivisible("KV heads", k_BTKD.shape[2], "kv_heads")
    )


def band_of(mask: Mask) -> Band:
    """Returns the band of a mask that `spec_refusal` accepts."""
    assert mask.band is not None
    return mask.band


def run_on_shards(
    kernel: ShardKernel,
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    segment_ids_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> jax.Array:
    """Runs a kernel on each device's shard of batch and heads, and zeroes the padding."""
    q_axes, kv_axes = ("batch", None, "heads", None), ("batch", None, "kv_heads", None)
    in_axes = (q_axes, kv_axes, kv_axes, ("batch", None), ("heads",))
    run = logical_shard_map(kernel, in_axes, q_axes)
    o_BSHW: jax.Array = run(q_BSHD, k_BTKD, v_BTKW, segment_ids_BS, sinks_H)
    return zero_padding(o_BSHW, segment_ids_BS)


def zero_padding(o_BSHW: jax.Array, segment_ids_BS: jax.Array | None) -> jax.Array:
    """Zeroes the output of padding. To a kernel, segment 0 is a segment like any other."""
    if segment_ids_BS is None:
        return o_BSHW
    return jnp.where((segment_ids_BS != 0)[..., None, None], o_BSHW, 0)
