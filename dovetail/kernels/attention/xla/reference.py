"""Attention by its formula, with all scores in memory: the reference for tests.

B batch, S queries, T keys, H heads, K KV heads, G query heads per KV head, D width of queries and
keys, W width of values.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.op import FEW_QUERIES, OUTPUT_TAG, AttentionCall
from dovetail.kernels.attention.shards import paged_refusal
from dovetail.kernels.dispatch import implementation
from dovetail.parallel import tag


def _is_slow(call: AttentionCall) -> bool:
    return call.q_BSHD.shape[1] > FEW_QUERIES


@implementation("reference", supports=paged_refusal, slow=_is_slow)
def reference(call: AttentionCall) -> jax.Array:
    """Computes attention with all scores in memory."""
    q_BSHD, k_BTKD, v_BTKW = call.qkv
    batch, queries, heads, width = q_BSHD.shape
    kv_heads = k_BTKD.shape[2]
    q_BSKGD = q_BSHD.reshape(batch, queries, kv_heads, heads // kv_heads, width)
    allowed_B11ST = call.allowed(q_axis=1)[:, None, None]
    s_BKGST = jnp.einsum("bskgd,btkd->bkgst", q_BSKGD, k_BTKD, preferred_element_type=jnp.float32)
    s_BKGST = s_BKGST * call.scale
    if call.score_map is not None:
        s_BKGST = call.score_map(s_BKGST)
    if call.score_bias is not None:
        s_BKGST += call.score_bias(
            jnp.arange(heads).reshape(kv_heads, -1, 1, 1),
            call.q_positions_BS[:, None, None, :, None],
            call.kv_positions_BT[:, None, None, None, :],
        )
    if call.score_activation is not None:
        p_BKGST = call.score_activation(s_BKGST)
    else:
        p_BKGST = _softmax(s_BKGST, allowed_B11ST, call.sinks_H)
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
