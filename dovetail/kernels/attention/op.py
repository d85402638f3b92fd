"""The attention op: the typed call of the layers, and the op behind it.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.registry import Op
from dovetail.kernels.score_maps import ScoreBias, ScoreMap

attention_op = Op("attention")  # `__init__.py` lists its implementations

# Every implementation tags its output with this name, so that a remat policy can save it. One with
# its own backward pass tags what that pass reads, so the tag cannot be put on from outside.
OUTPUT_TAG = "attention_output"


def attention(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    mask: Mask,
    q_positions_BS: jax.Array,
    kv_positions_BT: jax.Array,
    q_segment_ids_BS: jax.Array | None = None,
    kv_segment_ids_BT: jax.Array | None = None,
    aligned: bool,
    scale: float | None = None,
    score_map: ScoreMap | None = None,
    score_bias: ScoreBias | None = None,
    sinks_H: jax.Array | None = None,
    score_activation: ScoreMap | None = None,
) -> jax.Array:
    """Computes `softmax(scale * q @ k.T) @ v` under a mask.

    Args:
        q_BSHD: the queries. H is a multiple of K; consecutive heads share a KV head (GQA).
        k_BTKD: the keys.
        v_BTKW: the values, whose width may differ from that of the keys.
        mask: which keys a query may attend to, by position.
        q_positions_BS: the position of each query within its segment.
        kv_positions_BT: the position of each key within its segment.
        q_segment_ids_BS: if given, a query attends only to keys of its own segment. Segment 0 is
            padding: it attends to nothing, and nothing attends to it.
        kv_segment_ids_BT: the segment ids of the keys; given together with those of the queries.
        aligned: promises that S = T, that query i and key i are the same token of the same row, and
            that positions rise by one from token to token within a segment (within a row, where
            there are no segments). Then distances of indices equal distances of positions, and a
            kernel may mask by index.
        scale: the factor of the scores; None means 1 / sqrt(D).
        score_map: applied to each scaled score before the mask; None means nothing.
        score_bias: added to each score after the map; None means nothing.
        sinks_H: if given, the attention sink of each head (https://arxiv.org/abs/2508.10925): a
            learned logit that joins only the softmax's denominator, like a key with value 0 that
            every query attends to. It is neither scaled nor mapped.
        score_activation: if given, this elementwise activation of the scores replaces the softmax
            (sigmoid attention); then there are no sinks.

    Returns:
        [B, S, H, W] in the dtype of the queries. A query that may attend to no key gets zeros. The
        softmax is computed in float32 whatever the dtype of the inputs.
    """
    arguments: dict[str, Any] = {
        "mask": mask,
        "q_positions_BS": q_positions_BS,
        "kv_positions_BT": kv_positions_BT,
        "q_segment_ids_BS": q_segment_ids_BS,
        "kv_segment_ids_BT": kv_segment_ids_BT,
        "aligned": aligned,
        "sinks_H": sinks_H,
        "score_activation": score_activation,
    }
    _check(q_BSHD, k_BTKD, v_BTKW, **arguments)
    arguments["scale"] = q_BSHD.shape[-1] ** -0.5 if scale is None else scale
    arguments |= {"score_map": score_map, "score_bias": score_bias}
    o_BSHW: jax.Array = attention_op(q_BSHD, k_BTKD, v_BTKW, **arguments)
    return o_BSHW


def attention_mask(
    mask: Mask,
    q_positions: jax.Array,
    kv_positions: jax.Array,
    q_segment_ids: jax.Array | None,
    kv_segment_ids: jax.Array | None,
    q_index: jax.Array | None = None,
    kv_index: jax.Array | None = None,
) -> jax.Array:
    """Returns which queries may attend to which keys: by the mask, and by segment ids.

    All arguments broadcast together. Indices are given where the call is aligned.
    """
    allowed = mask.allowed(q_positions, kv_positions)
    if q_index is not None and kv_index is not None and mask.causal:
        allowed &= kv_index <= q_index
    if q_segment_ids is not None and kv_segment_ids is not None:
        allowed &= (q_segment_ids == kv_segment_ids) & (q_segment_ids != 0)
    return allowed


def _check(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    q_positions_BS: jax.Array,
    kv_positions_BT: jax.Array,
    q_segment_ids_BS: jax.Array | None,
    kv_segment_ids_BT: jax.Array | None,
    aligned: bool,
    sinks_H: jax.Array | None,
    score_activation: ScoreMap | None,
    **_: Any,
) -> None:
    if q_BSHD.ndim != 4 or k_BTKD.ndim != 4:
        raise _wrong("four axes", f"q {q_BSHD.shape} and k {k_BTKD.shape}")
    batch, queries, heads, width = q_BSHD.shape
    keys, kv_heads = k_BTKD.shape[1:3]
    if k_BTKD.shape != (batch, keys, kv_heads, width) or v_BTKW.ndim != 4:
        raise _wrong(
            "k with the batch and width of q, and v of four axes",
            f"q {q_BSHD.shape}, k {k_BTKD.shape} and v {v_BTKW.shape}",
        )
    if v_BTKW.shape[:3] != k_BTKD.shape[:3]:
        raise _wrong(
            "k and v of one shape but for the width",
            f"k {k_BTKD.shape} and v {v_BTKW.shape}",
        )
    if heads % kv_heads:
        raise _wrong("heads that are a multiple of KV heads", f"{heads} and {kv_heads}")
    if aligned and queries != keys:
        raise _wrong(
            "as many keys as queries, since aligned=True says they are the same tokens",
            f"{queries} queries and {keys} keys",
        )
    if (q_segment_ids_BS is None) != (kv_segment_ids_BT is None):
        given = "keys" if q_segment_ids_BS is None else "queries"
        raise _wrong(
            "segment ids of both queries and keys, or of neither", f"those of {given} only"
        )
    for name, array, shape in (
        ("q_positions_BS", q_positions_BS, (batch, queries)),
        ("kv_positions_BT", kv_positions_BT, (batch, keys)),
        ("q_segment_ids_BS", q_segment_ids_BS, (batch, queries)),
        ("kv_segment_ids_BT", kv_segment_ids_BT, (batch, keys)),
    ):
        if array is not None and (
            array.shape != shape or not jnp.issubdtype(array.dtype, jnp.integer)
        ):
            raise _wrong(f"{name} of shape {shape} and integers", f"{array.shape} {array.dtype}")
    if sinks_H is not None and score_activation is not None:
        raise _wrong(
            "sinks of a softmax", f"sinks beside {score_activation}, which has no denominator"
        )
    if sinks_H is not None and (
        sinks_H.shape != (heads,) or not jnp.issubdtype(sinks_H.dtype, jnp.floating)
    ):
        raise _wrong(f"sinks_H of shape ({heads},) and floats", f"{sinks_H.shape} {sinks_H.dtype}")


def _wrong(expected: str, got: str) -> ValueError:
    return ValueError(f"attention: expected {expected}, got {got}.")
