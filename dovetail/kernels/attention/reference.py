"""Attention as the formula says it, with all scores at once: the standard for tests.

B batch, S queries, T keys, H heads, K key-value heads, G heads that share one, D width of queries
and keys, W of values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import OUTPUT_TAG, allowed_pairs, attention_op
from dovetail.kernels.score_maps import ScoreBias, ScoreMap
from dovetail.parallel import tag

# Up to this many queries all scores at once are as good as anything (as when decoding).
FEW_QUERIES = 127


def _is_slow(query_BSHD: jax.Array, *_: Any, **__: Any) -> bool:
    return query_BSHD.shape[1] > FEW_QUERIES


@attention_op.register("reference", slow=_is_slow)
def reference(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    mask: Mask,
    query_positions_BS: jax.Array,
    key_positions_BT: jax.Array,
    query_segments_BS: jax.Array | None,
    key_segments_BT: jax.Array | None,
    aligned: bool,
    scale: float,
    score_map: ScoreMap | None = None,
    score_bias: ScoreBias | None = None,
    sinks_H: jax.Array | None = None,
    weigh: ScoreMap | None = None,
) -> jax.Array:
    """Computes attention with every score in memory; see `attention` for the arguments."""
    batch, queries, heads, width = query_BSHD.shape
    keys, kv_heads = key_BTKD.shape[1:3]
    query_BSKGD = query_BSHD.reshape(batch, queries, kv_heads, heads // kv_heads, width)
    allowed_BST = allowed_pairs(
        mask,
        query_positions_BS[:, :, None],
        key_positions_BT[:, None, :],
        None if query_segments_BS is None else query_segments_BS[:, :, None],
        None if key_segments_BT is None else key_segments_BT[:, None, :],
        jnp.arange(queries)[:, None] if aligned else None,
        jnp.arange(keys) if aligned else None,
    )
    allowed_BKGST = allowed_BST[:, None, None]
    score_BKGST = jnp.einsum(
        "bskgd,btkd->bkgst", query_BSKGD, key_BTKD, preferred_element_type=jnp.float32
    )
    score_BKGST = score_BKGST * scale
    if score_map is not None:
        score_BKGST = score_map(score_BKGST)
    if score_bias is not None:
        score_BKGST += score_bias(
            jnp.arange(heads).reshape(kv_heads, -1, 1, 1),
            query_positions_BS[:, None, None, :, None],
            key_positions_BT[:, None, None, None, :],
        )
    if weigh is not None:
        share_BKGST = weigh(score_BKGST)
    else:
        share_BKGST = _softmax(score_BKGST, allowed_BKGST, sinks_H)
    # Where a query sees no key, the softmax spread its share evenly: take it back.
    share_BKGST = jnp.where(allowed_BKGST, share_BKGST, 0).astype(value_BTKW.dtype)
    mixed_BSKGW = jnp.einsum(
        "bkgst,btkw->bskgw", share_BKGST, value_BTKW, preferred_element_type=jnp.float32
    )
    mixed_BSHW = mixed_BSKGW.reshape(batch, queries, heads, -1).astype(query_BSHD.dtype)
    return tag(mixed_BSHW, OUTPUT_TAG)


def _softmax(
    score_BKGST: jax.Array, allowed_BKGST: jax.Array, sinks_H: jax.Array | None
) -> jax.Array:
    """Returns each key's share; where no key is allowed, all have the same."""
    score_BKGST = jnp.where(allowed_BKGST, score_BKGST, jnp.finfo(jnp.float32).min)
    if sinks_H is None:
        return jax.nn.softmax(score_BKGST, axis=-1)
    return _softmax_with_sinks(score_BKGST, sinks_H.reshape(score_BKGST.shape[1], -1, 1, 1))


def _softmax_with_sinks(score_BKGST: jax.Array, sink_KG11: jax.Array) -> jax.Array:
    """Returns each key's share of a softmax to whose denominator the sinks belong."""
    sink_KG11 = sink_KG11.astype(jnp.float32)
    top_BKGS1 = jnp.maximum(score_BKGST.max(axis=-1, keepdims=True), sink_KG11)
    top_BKGS1 = jax.lax.stop_gradient(top_BKGS1)  # it cancels out
    share_BKGST = jnp.exp(score_BKGST - top_BKGS1)
    sum_BKGS1 = share_BKGST.sum(axis=-1, keepdims=True) + jnp.exp(sink_KG11 - top_BKGS1)
    return share_BKGST / sum_BKGS1
