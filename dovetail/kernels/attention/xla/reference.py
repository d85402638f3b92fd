"""Attention by its formula, with all scores in memory: the reference for tests.

B batch, S queries, T keys, H heads, K KV heads, G query heads per KV head, D width of queries and
keys, W width of values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import OUTPUT_TAG, attention_mask
from dovetail.kernels.registry import implementation
from dovetail.kernels.score_maps import ScoreBias, ScoreMap
from dovetail.parallel import tag

# Up to this many queries nothing beats computing all scores at once (decoding has one query).
FEW_QUERIES = 127


def _is_slow(q_BSHD: jax.Array, *_: Any, **__: Any) -> bool:
    return q_BSHD.shape[1] > FEW_QUERIES


@implementation("reference", slow=_is_slow)
def reference(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    mask: Mask,
    q_positions_BS: jax.Array,
    kv_positions_BT: jax.Array,
    q_segment_ids_BS: jax.Array | None,
    kv_segment_ids_BT: jax.Array | None,
    aligned: bool,
    scale: float,
    score_map: ScoreMap | None = None,
    score_bias: ScoreBias | None = None,
    sinks_H: jax.Array | None = None,
    score_activation: ScoreMap | None = None,
) -> jax.Array:
    """Computes attention with all scores in memory; see `attention` for the arguments."""
    batch, queries, heads, width = q_BSHD.shape
    keys, kv_heads = k_BTKD.shape[1:3]
    q_BSKGD = q_BSHD.reshape(batch, queries, kv_heads, heads // kv_heads, width)
    allowed_BST = attention_mask(
        mask,
        q_positions_BS[:, :, None],
        kv_positions_BT[:, None, :],
        None if q_segment_ids_BS is None else q_segment_ids_BS[:, :, None],
        None if kv_segment_ids_BT is None else kv_segment_ids_BT[:, None, :],
        jnp.arange(queries)[:, None] if aligned else None,
        jnp.arange(keys) if aligned else None,
    )
    allowed_B11ST = allowed_BST[:, None, None]
    s_BKGST = jnp.einsum("bskgd,btkd->bkgst", q_BSKGD, k_BTKD, preferred_element_type=jnp.float32)
    s_BKGST = s_BKGST * scale
    if score_map is not None:
        s_BKGST = score_map(s_BKGST)
    if score_bias is not None:
        s_BKGST += score_bias(
            jnp.arange(heads).reshape(kv_heads, -1, 1, 1),
            q_positions_BS[:, None, None, :, None],
            kv_positions_BT[:, None, None, None, :],
        )
    if score_activation is not None:
        p_BKGST = score_activation(s_BKGST)
    else:
        p_BKGST = _softmax(s_BKGST, allowed_B11ST, sinks_H)
    # Where a query attends to no key, the softmax of equal scores is uniform: zero it.
    p_BKGST = jnp.where(allowed_B11ST, p_BKGST, 0).astype(v_BTKW.dtype)
    o_BSKGW = jnp.einsum("bkgst,btkw->bskgw", p_BKGST, v_BTKW, preferred_element_type=jnp.float32)
    o_BSHW = o_BSKGW.reshape(batch, queries, heads, -1).astype(q_BSHD.dtype)
    return tag(o_BSHW, OUTPUT_TAG)


def _softmax(s_BKGST: jax.Array, allowed_B11ST: jax.Array, sinks_H: jax.Array | None) -> jax.Array:
    """Returns the probabilities; where no key is allowed, they are uniform."""
    s_BKGST = jnp.where(allowed_B11ST, s_BKGST, jnp.finfo(jnp.float32).min)
    if sinks_H is None:
        return jax.nn.softmax(s_BKGST, axis=-1)
    sinks_KG11 = sinks_H.reshape(s_BKGST.shape[1], -1, 1, 1).astype(jnp.float32)
    m_BKGS1 = jnp.maximum(s_BKGST.max(axis=-1, keepdims=True), sinks_KG11)
    m_BKGS1 = jax.lax.stop_gradient(m_BKGS1)  # it cancels out
    p_BKGST = jnp.exp(s_BKGST - m_BKGS1)
    l_BKGS1 = p_BKGST.sum(axis=-1, keepdims=True) + jnp.exp(sinks_KG11 - m_BKGS1)
    return p_BKGST / l_BKGS1
