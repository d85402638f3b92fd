"""Scores of a block of attention: what the implementations that are made of XLA's operations share.

B batch, S queries, T keys, H heads, K key-value heads, G heads that share one, D width of queries
and keys, W of values, R = G times S: a row for each query and head. All but H count what belongs to
the block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import allowed_pairs
from dovetail.kernels.attention.shapes import as_rows, product
from dovetail.kernels.score_maps import ScoreBias, ScoreMap

LOW = float(jnp.finfo(jnp.float32).min)


class Rule(NamedTuple):
    """What is done to scores: static, and so hashable."""

    mask: Mask
    aligned: bool
    scale: float
    score_map: ScoreMap | None
    score_bias: ScoreBias | None
    weigh: ScoreMap | None


class Places(NamedTuple):
    """Where queries and keys stand; of a whole call, or of a block."""

    query_positions_BS: jax.Array
    key_positions_BT: jax.Array
    query_segments_BS: jax.Array | None
    key_segments_BT: jax.Array | None


def allowed_in_block(
    rule: Rule, places: Places, query_index_S: jax.Array, key_index_T: jax.Array
) -> jax.Array:
    """Returns which pairs of a block are allowed, as [B, 1, T, 1, S]."""
    query_segments, key_segments = places.query_segments_BS, places.key_segments_BT
    allowed_BTS = allowed_pairs(
        rule.mask,
        places.query_positions_BS[:, None, :],
        places.key_positions_BT[:, :, None],
        None if query_segments is None else query_segments[:, None, :],
        None if key_segments is None else key_segments[:, :, None],
        query_index_S if rule.aligned else None,
        key_index_T[:, None] if rule.aligned else None,
    )
    return allowed_BTS[:, None, :, None]


def scaled_scores(rule: Rule, query_BKGSD: jax.Array, key_BKTD: jax.Array) -> jax.Array:
    """Returns the scaled scores of a block as [B, K, T, G, S], neither mapped nor masked."""
    batch, kv_heads, shared, queries, _ = query_BKGSD.shape
    score_BKTR = product("bktd,bkrd->bktr", key_BKTD, as_rows(query_BKGSD, 2))
    return score_BKTR.reshape(batch, kv_heads, -1, shared, queries) * rule.scale


def mapped(
    score_map: ScoreMap | None, score_BKTGS: jax.Array
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """Returns the mapped scores, and the way back for their gradient."""
    if score_map is None:
        return score_BKTGS, lambda gradient_BKTGS: gradient_BKTGS
    mapped_BKTGS, pull = jax.vjp(score_map, score_BKTGS)
    return mapped_BKTGS, lambda gradient_BKTGS: pull(gradient_BKTGS)[0]


def biased(rule: Rule, places: Places, score_BKTGS: jax.Array) -> jax.Array:
    """Returns the scores with what their heads and places add."""
    if rule.score_bias is None:
        return score_BKTGS
    _, kv_heads, _, shared, _ = score_BKTGS.shape
    return score_BKTGS + rule.score_bias(
        jnp.arange(kv_heads * shared).reshape(kv_heads, 1, shared, 1),
        places.query_positions_BS[:, None, None, None, :],
        places.key_positions_BT[:, None, :, None, None],
    )


def weighed(share_BKTGS: jax.Array, value_BKTW: jax.Array) -> jax.Array:
    """Returns the values of each row, weighed and added up: [B, K, R, W]."""
    share_BKTR = as_rows(share_BKTGS, 3).astype(value_BKTW.dtype)
    return product("bktr,bktw->bkrw", share_BKTR, value_BKTW)


def block_gradients(
    rule: Rule,
    places: Places,
    allowed_BKTGS: jax.Array,
    query_BKGSD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTW: jax.Array,
    gradient_BKGSW: jax.Array,
    log_BKGS: jax.Array,
    mean_BKGS: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns what one block adds to the gradients of queries, keys and values."""
    score_BKTGS, map_back = mapped(rule.score_map, scaled_scores(rule, query_BKGSD, key_BKTD))
    score_BKTGS = biased(rule, places, score_BKTGS)
    query_BKRD, gradient_BKRW = as_rows(query_BKGSD, 2), as_rows(gradient_BKGSW, 2)
    to_share_BKTR = product("bktw,bkrw->bktr", value_BKTW, gradient_BKRW)
    to_share_BKTGS = to_share_BKTR.reshape(score_BKTGS.shape)
    if rule.weigh is None:
        score_BKTGS = jnp.where(allowed_BKTGS, score_BKTGS, LOW)
        share_BKTGS = jnp.where(allowed_BKTGS, jnp.exp(score_BKTGS - log_BKGS[:, :, None]), 0)
        to_mapped_BKTGS = share_BKTGS * (to_share_BKTGS - mean_BKGS[:, :, None])
    else:
        share_BKTGS, share_back = mapped(rule.weigh, score_BKTGS)
        share_BKTGS = jnp.where(allowed_BKTGS, share_BKTGS, 0)
        to_mapped_BKTGS = share_back(jnp.where(allowed_BKTGS, to_share_BKTGS, 0))
    to_score_BKTGS = map_back(to_mapped_BKTGS) * rule.scale
    to_score_BKTR = as_rows(to_score_BKTGS, 3).astype(key_BKTD.dtype)
    share_BKTR = as_rows(share_BKTGS, 3).astype(value_BKTW.dtype)
    to_query_BKRD = product("bktr,bktd->bkrd", to_score_BKTR, key_BKTD)
    to_key_BKTD = product("bktr,bkrd->bktd", to_score_BKTR, query_BKRD)
    to_value_BKTW = product("bktr,bkrw->bktw", share_BKTR, gradient_BKRW)
    return to_query_BKRD.reshape(query_BKGSD.shape), to_key_BKTD, to_value_BKTW


def sinks_by_head(sinks_H: jax.Array | None, kv_heads: int) -> jax.Array | None:
    """Returns the sinks as [K, G, 1] in float32."""
    if sinks_H is None:
        return None
    return sinks_H.astype(jnp.float32).reshape(kv_heads, -1, 1)


def sinks_gradient(
    sinks_H: jax.Array | None, log_BKGS: jax.Array, mean_BKGS: jax.Array
) -> jax.Array | None:
    """Returns the gradient of the sinks: as that of a score, with a value of 0."""
    sinks_KG1 = sinks_by_head(sinks_H, log_BKGS.shape[1])
    if sinks_H is None or sinks_KG1 is None:
        return None
    share_BKGS = jnp.exp(sinks_KG1 - log_BKGS)
    return -(share_BKGS * mean_BKGS).sum(axis=(0, 3)).reshape(sinks_H.shape).astype(sinks_H.dtype)
