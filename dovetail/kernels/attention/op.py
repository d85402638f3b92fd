"""The attention op: the typed front that layers call, and the list of implementations behind it.

B batch, S queries, T keys, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.registry import Op
from dovetail.kernels.score_maps import ScoreBias, ScoreMap

attention_op = Op("attention")

# What every implementation tags its output with, so that a remat policy can keep it. It is done
# in there because one with its own backward pass needs the tag on what that pass reads.
OUTPUT_TAG = "attention_output"


def attention(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    mask: Mask,
    query_positions_BS: jax.Array,
    key_positions_BT: jax.Array,
    query_segments_BS: jax.Array | None = None,
    key_segments_BT: jax.Array | None = None,
    aligned: bool,
    scale: float | None = None,
    score_map: ScoreMap | None = None,
    score_bias: ScoreBias | None = None,
    sinks_H: jax.Array | None = None,
    weigh: ScoreMap | None = None,
) -> jax.Array:
    """Mixes values by how well their keys fit each query.

    Args:
        query_BSHD: the queries. H is a multiple of K; heads in a row share a key-value head.
        key_BTKD: the keys.
        value_BTKW: the values, which may have another width than the keys.
        mask: which keys a query may see, judged by their positions.
        query_positions_BS: the position of each query within its segment.
        key_positions_BT: the position of each key within its segment.
        query_segments_BS: if given, a query sees keys of its own segment only, and segment 0
            (padding) sees nothing and is seen by nothing.
        key_segments_BT: the segments of the keys; given together with those of the queries.
        aligned: promises that S = T, that query i and key i are the same token of the same row, and
            that positions rise by one from token to token within a segment (within a row, where
            there are no segments). Then indices are as far apart as positions, and a kernel may
            judge by index.
        scale: what scores are multiplied with; None means 1 / sqrt(D).
        score_map: what is done to each scaled score before the mask; None means nothing.
        sinks_H: if given, each head's sink (https://arxiv.org/abs/2508.10925): a learned logit that
            joins the softmax's denominator alone, as if of a key whose value is 0 and that every
            query sees. It is neither scaled nor mapped.
        score_bias: what is added to each score after the map; None means nothing.
        weigh: if given, the weight of a key is this function of its score alone, in place of the
            softmax over all keys; then there are no sinks.

    Returns:
        [B, S, H, W] in the dtype of the queries. A query that sees no key gets zeros. The softmax
        is computed in float32 whatever the dtype of the inputs.
    """
    arguments: dict[str, Any] = {
        "mask": mask,
        "query_positions_BS": query_positions_BS,
        "key_positions_BT": key_positions_BT,
        "query_segments_BS": query_segments_BS,
        "key_segments_BT": key_segments_BT,
        "aligned": aligned,
        "sinks_H": sinks_H,
        "weigh": weigh,
    }
    _check(query_BSHD, key_BTKD, value_BTKW, **arguments)
    arguments["scale"] = query_BSHD.shape[-1] ** -0.5 if scale is None else scale
    arguments |= {"score_map": score_map, "score_bias": score_bias}
    mixed_BSHW: jax.Array = attention_op(query_BSHD, key_BTKD, value_BTKW, **arguments)
    return mixed_BSHW


def allowed_pairs(
    mask: Mask,
    query_positions: jax.Array,
    key_positions: jax.Array,
    query_segments: jax.Array | None,
    key_segments: jax.Array | None,
    query_index: jax.Array | None = None,
    key_index: jax.Array | None = None,
) -> jax.Array:
    """Returns which queries may see which keys: what implementations share of the op's meaning.

    All arguments broadcast together. Indices are given where the call is aligned.
    """
    allowed = mask.allowed(query_positions, key_positions)
    if query_index is not None and key_index is not None and mask.causal:
        allowed &= key_index <= query_index
    if query_segments is not None and key_segments is not None:
        allowed &= (query_segments == key_segments) & (query_segments != 0)
    return allowed


def _check(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    query_positions_BS: jax.Array,
    key_positions_BT: jax.Array,
    query_segments_BS: jax.Array | None,
    key_segments_BT: jax.Array | None,
    aligned: bool,
    sinks_H: jax.Array | None,
    weigh: ScoreMap | None,
    **_: Any,
) -> None:
    if query_BSHD.ndim != 4 or key_BTKD.ndim != 4:
        raise _wrong("four axes", f"query {query_BSHD.shape} and key {key_BTKD.shape}")
    batch, queries, heads, width = query_BSHD.shape
    keys, kv_heads = key_BTKD.shape[1:3]
    if key_BTKD.shape != (batch, keys, kv_heads, width) or value_BTKW.ndim != 4:
        raise _wrong(
            "a key with the batch and width of the query, and a value of four axes",
            f"query {query_BSHD.shape}, key {key_BTKD.shape} and value {value_BTKW.shape}",
        )
    if value_BTKW.shape[:3] != key_BTKD.shape[:3]:
        raise _wrong(
            "key and value of one shape but for the width",
            f"key {key_BTKD.shape} and value {value_BTKW.shape}",
        )
    if heads % kv_heads:
        raise _wrong("heads that are a multiple of key-value heads", f"{heads} and {kv_heads}")
    if aligned and queries != keys:
        raise _wrong(
            "as many keys as queries, since aligned=True says they are the same tokens",
            f"{queries} queries and {keys} keys",
        )
    if (query_segments_BS is None) != (key_segments_BT is None):
        given = "keys" if query_segments_BS is None else "queries"
        raise _wrong("segments of both queries and keys, or of neither", f"those of {given} only")
    for name, array, shape in (
        ("query_positions_BS", query_positions_BS, (batch, queries)),
        ("key_positions_BT", key_positions_BT, (batch, keys)),
        ("query_segments_BS", query_segments_BS, (batch, queries)),
        ("key_segments_BT", key_segments_BT, (batch, keys)),
    ):
        if array is not None and (
            array.shape != shape or not jnp.issubdtype(array.dtype, jnp.integer)
        ):
            raise _wrong(f"{name} of shape {shape} and integers", f"{array.shape} {array.dtype}")
    if sinks_H is not None and weigh is not None:
        raise _wrong("sinks of a softmax", f"sinks beside {weigh}, which has no denominator")
    if sinks_H is not None and (
        sinks_H.shape != (heads,) or not jnp.issubdtype(sinks_H.dtype, jnp.floating)
    ):
        raise _wrong(f"sinks_H of shape ({heads},) and floats", f"{sinks_H.shape} {sinks_H.dtype}")


def _wrong(expected: str, got: str) -> ValueError:
    return ValueError(f"attention: expected {expected}, got {got}.")
