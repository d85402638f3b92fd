"""Scores of a block of attention: shared by the implementations in XLA operations.

Scores have keys before queries, [B, K, T, G, S]. On CPUs that makes four of the five matmuls of the
backward pass plain ones.

B batch, S queries, T keys, H heads, K KV heads, G query heads per KV head, D width of queries and
keys, W width of values, R = G times S. S, T and R count the tokens of the block. The call
has the positions and segment ids of the block; q, k and v are arguments of their own, heads first.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.flash import BackwardInputs, Gradients
from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.score_maps import ScoreBias, ScoreMap

# The score of a masked pair. It is finite, so that LOW - LOW is 0 and not NaN.
LOW = float(jnp.finfo(jnp.float32).min)


def block_mask(call: AttentionCall, q_index_S: jax.Array, kv_index_T: jax.Array) -> jax.Array:
    """Returns which pairs of a block are allowed, as [B, 1, T, 1, S]."""
    return call.allowed(2, q_index_S, kv_index_T)[:, None, :, None]


def block_scores(
    call: AttentionCall, q_BKGSD: jax.Array, k_BKTD: jax.Array
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns the scores of a block, scaled, mapped and biased but not masked.

    Also returns the VJP of the score map.
    """
    batch, kv_heads, group, queries, _ = q_BKGSD.shape
    s_BKTR = matmul("bktd,bkrd->bktr", k_BKTD, merge_group(q_BKGSD, 2))
    s_BKTGS = s_BKTR.reshape(batch, kv_heads, -1, group, queries) * call.scale
    s_BKTGS, map_vjp = apply_score_map(call.score_map, s_BKTGS)
    if call.score_bias is not None:
        s_BKTGS = s_BKTGS + _block_bias(call, call.score_bias, kv_heads, group)
    return s_BKTGS, map_vjp


def _block_bias(call: AttentionCall, bias: ScoreBias, kv_heads: int, group: int) -> jax.Array:
    """Returns the bias of a block, which broadcasts to [B, K, T, G, S]."""
    return bias(
        jnp.arange(kv_heads * group).reshape(kv_heads, 1, group, 1),
        call.q_positions_BS[:, None, None, None, :],
        call.kv_positions_BT[:, None, :, None, None],
    )


def init_bias_gradient(call: AttentionCall) -> ScoreBias | None:
    """Returns zeros in float32, to which blocks add; None for a bias without arrays."""
    if not jax.tree.leaves(call.score_bias):
        return None
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), call.score_bias)


def _bias_gradient(call: AttentionCall, ds_BKTGS: jax.Array) -> ScoreBias | None:
    """Returns what one block adds to the gradient of the bias's arrays, in float32."""
    if not jax.tree.leaves(call.score_bias):
        return None
    _, kv_heads, _, group, _ = ds_BKTGS.shape

    def biased(bias: ScoreBias) -> jax.Array:
        return jnp.broadcast_to(_block_bias(call, bias, kv_heads, group), ds_BKTGS.shape)

    exact = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), call.score_bias)
    dbias: ScoreBias = jax.vjp(biased, exact)[1](ds_BKTGS)[0]
    return dbias


def apply_score_map(
    score_map: ScoreMap | None, s: jax.Array
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns the mapped scores, and the VJP of the map."""
    if score_map is None:
        return s, lambda ds: ds
    mapped, vjp = jax.vjp(score_map, s)
    return mapped, lambda ds: vjp(ds)[0]


def weighted_values(p_BKTGS: jax.Array, v_BKTW: jax.Array) -> jax.Array:
    """Returns `p @ v` for a block: [B, K, R, W]."""
    p_BKTR = merge_group(p_BKTGS, 3).astype(v_BKTW.dtype)
    return matmul("bktr,bktw->bkrw", p_BKTR, v_BKTW)


def block_gradients(
    call: AttentionCall,
    allowed_B1T1S: jax.Array,
    q_BKGSD: jax.Array,
    k_BKTD: jax.Array,
    v_BKTW: jax.Array,
    do_BKGSW: jax.Array,
    lse_BKGS: jax.Array,
    delta_BKGS: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, ScoreBias | None]:
    """Returns what one block adds to dq, dk, dv and dbias (FlashAttention's backward pass)."""
    s_BKTGS, map_vjp = block_scores(call, q_BKGSD, k_BKTD)
    q_BKRD, do_BKRW = merge_group(q_BKGSD, 2), merge_group(do_BKGSW, 2)
    dp_BKTR = matmul("bktw,bkrw->bktr", v_BKTW, do_BKRW)
    dp_BKTGS = dp_BKTR.reshape(s_BKTGS.shape)
    if call.score_activation is None:
        # Recompute the probabilities from the logsumexp.
        s_BKTGS = jnp.where(allowed_B1T1S, s_BKTGS, LOW)
        p_BKTGS = jnp.where(allowed_B1T1S, jnp.exp(s_BKTGS - lse_BKGS[:, :, None]), 0)
        ds_BKTGS = p_BKTGS * (dp_BKTGS - delta_BKGS[:, :, None])
    else:
        p_BKTGS, activation_vjp = apply_score_map(call.score_activation, s_BKTGS)
        p_BKTGS = jnp.where(allowed_B1T1S, p_BKTGS, 0)
        ds_BKTGS = activation_vjp(jnp.where(allowed_B1T1S, dp_BKTGS, 0))
    dbias = _bias_gradient(call, ds_BKTGS)
    ds_BKTGS = map_vjp(ds_BKTGS) * call.scale
    ds_BKTR = merge_group(ds_BKTGS, 3).astype(k_BKTD.dtype)
    p_BKTR = merge_group(p_BKTGS, 3).astype(v_BKTW.dtype)
    dq_BKRD = matmul("bktr,bktd->bkrd", ds_BKTR, k_BKTD)
    dk_BKTD = matmul("bktr,bkrd->bktd", ds_BKTR, q_BKRD)
    dv_BKTW = matmul("bktr,bkrw->bktw", p_BKTR, do_BKRW)
    return dq_BKRD.reshape(q_BKGSD.shape), dk_BKTD, dv_BKTW, dbias


def sinks_by_kv_head(call: AttentionCall, kv_heads: int) -> jax.Array | None:
    """Returns the sinks as [K, G, 1] in float32."""
    if call.sinks_H is None:
        return None
    return call.sinks_H.astype(jnp.float32).reshape(kv_heads, -1, 1)


def sinks_gradient(
    call: AttentionCall, lse_BKGS: jax.Array, delta_BKGS: jax.Array
) -> jax.Array | None:
    """Returns the gradient of the sinks: that of a score whose value is 0."""
    sinks_KG1 = sinks_by_kv_head(call, lse_BKGS.shape[1])
    if call.sinks_H is None or sinks_KG1 is None:
        return None
    p_BKGS = jnp.exp(sinks_KG1 - lse_BKGS)
    dsinks_H = (p_BKGS * delta_BKGS).sum(axis=(0, 3)).reshape(call.sinks_H.shape)
    return (-dsinks_H).astype(call.sinks_H.dtype)


def sinks_gradient_by_head(call: AttentionCall, given: BackwardInputs) -> jax.Array | None:
    """Returns the gradient of the sinks from rows [B, H, S], as if no heads shared a KV head."""
    return sinks_gradient(call, given.lse_BHS[:, :, None], given.delta_BHS[:, :, None])


def heads_first(call: AttentionCall) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Transposes q to [B, K, G, S, D], and k and v to [B, K, T, width]."""
    q_BSHD, k_BTKD, v_BTKW = call.qkv
    q_BKGSD = split_heads(q_BSHD, k_BTKD.shape[2])
    return q_BKGSD, k_BTKD.transpose(0, 2, 1, 3), v_BTKW.transpose(0, 2, 1, 3)


def output_gradients(
    call: AttentionCall, o_BSHW: jax.Array, do_BSHW: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns do as [B, K, G, S, W], and delta as [B, K, G, S]."""
    kv_heads = call.k_BTKD.shape[2]
    do_BKGSW = split_heads(do_BSHW, kv_heads)
    # delta = sum(o * do), which equals the sum of p times dp.
    product_BSHW = o_BSHW.astype(jnp.float32) * do_BSHW.astype(jnp.float32)
    return do_BKGSW, split_heads(product_BSHW.sum(axis=-1, keepdims=True), kv_heads)[..., 0]


def call_gradients(
    call: AttentionCall,
    dq_BSHD: jax.Array,
    dk_BKTD: jax.Array,
    dv_BKTW: jax.Array,
    dbias: ScoreBias | None,
    *rows: jax.Array,
) -> Gradients:
    """Returns the gradients of a call; lse and delta, the rows, give those of its sinks."""
    return Gradients(
        dq_BSHD,
        dk_BKTD.transpose(0, 2, 1, 3).astype(call.k_BTKD.dtype),
        dv_BKTW.transpose(0, 2, 1, 3).astype(call.v_BTKW.dtype),
        sinks_gradient(call, *rows),
        dbias,
    )


def split_heads(x_BSHD: jax.Array, kv_heads: int) -> jax.Array:
    """Turns [B, S, H, D] into [B, K, G, S, D]."""
    batch, queries, heads, width = x_BSHD.shape
    x_BSKGD = x_BSHD.reshape(batch, queries, kv_heads, heads // kv_heads, width)
    return x_BSKGD.transpose(0, 2, 3, 1, 4)


def merge_heads(x_BKGSD: jax.Array) -> jax.Array:
    """Turns [B, K, G, S, D] into [B, S, H, D]."""
    batch, kv_heads, group, queries, width = x_BKGSD.shape
    return x_BKGSD.transpose(0, 3, 1, 2, 4).reshape(batch, queries, kv_heads * group, width)


def merge_blocks(blocks: jax.Array, axis: int) -> jax.Array:
    """Merges the leading axis of blocks into another axis."""
    moved = jnp.moveaxis(blocks, 0, axis)
    return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])


def merge_group(array: jax.Array, axis: int) -> jax.Array:
    """Merges the axes G and S, at `axis` and after it, into R."""
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def matmul(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """Multiplies in the dtype of the factors, and accumulates in float32."""
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)
