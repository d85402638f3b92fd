"""What attention kernels share: which calls none of them takes, and each device's part of a call.

Batch and heads are split over devices, and a kernel sees one device's part. A sequence that is
split is another matter: there keys have to travel, so kernels refuse it, and `ring` and `ulysses`,
which are made for it, ask `split_refusal`.

B batch, S queries, T keys, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Band, Mask
from dovetail.kernels.sharded import indivisible, mesh_axes, on_each_device, parts

Part = Callable[..., jax.Array]
"""From query_BSHD, key_BTKD, value_BTKW, segments_BS and sinks_H (or None) to [B, S, H, W]."""


def common_refusal(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    *_: Any,
    mask: Mask,
    aligned: bool,
    score_bias: Any = None,
    weigh: Any = None,
    **__: Any,
) -> str | None:
    """Returns why a kernel that judges by index cannot take a call, or None if it may."""
    if not aligned:
        return "queries and keys are not the same tokens, and it judges by index"
    if mesh_axes("sequence"):
        return "the sequence is split over devices"
    return rule_refusal(mask, score_bias, weigh) or _uneven(query_BSHD, key_BTKD)


def rule_refusal(mask: Mask, score_bias: Any, weigh: Any) -> str | None:
    """Returns why a kernel cannot do to scores what a call asks for, or None if it can."""
    if mask.band is None:
        return f"{mask} is no band around the diagonal"
    if score_bias is not None:
        return f"it knows no bias {score_bias}"
    if weigh is not None:
        return f"it computes a softmax, not {weigh}"
    return None


def split_refusal(query_BSHD: jax.Array, key_BTKD: jax.Array, aligned: bool) -> str | None:
    """Returns why a call is not one of a sequence that is split evenly over devices."""
    if not is_sequence_split():
        return "the sequence is not split over devices"
    if not aligned:
        return "queries and keys are not the same tokens"
    return indivisible("tokens", query_BSHD.shape[1], "sequence") or _uneven(query_BSHD, key_BTKD)


def is_sequence_split() -> bool:
    """Says whether devices have parts of the sequence."""
    return bool(mesh_axes("sequence"))


def _uneven(query_BSHD: jax.Array, key_BTKD: jax.Array) -> str | None:
    if parts("heads") != parts("kv_heads"):
        return (
            f"heads are split over {parts('heads')} devices, and key-value heads over "
            f"{parts('kv_heads')}"
        )
    return (
        indivisible("rows of the batch", query_BSHD.shape[0], "batch")
        or indivisible("heads", query_BSHD.shape[2], "heads")
        or indivisible("key-value heads", key_BTKD.shape[2], "kv_heads")
    )


def band_of(mask: Mask) -> Band:
    """Returns the band of a mask that `rule_refusal` has let pass."""
    assert mask.band is not None
    return mask.band


def on_parts(
    part: Part,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    segments_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> jax.Array:
    """Runs a kernel on each device's part of batch and heads, and clears the rows of padding."""
    queries, keys = ("batch", None, "heads", None), ("batch", None, "kv_heads", None)
    axes = (queries, keys, keys, ("batch", None), ("heads",))
    run = on_each_device(part, axes, queries)
    mixed_BSHW: jax.Array = run(query_BSHD, key_BTKD, value_BTKW, segments_BS, sinks_H)
    if segments_BS is None:
        return mixed_BSHW
    # To a kernel, padding is a segment like others, whose tokens see each other.
    return jnp.where((segments_BS != 0)[..., None, None], mixed_BSHW, 0)
