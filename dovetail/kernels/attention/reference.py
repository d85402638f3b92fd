"""Attention as the formula says it, with all scores at once: the standard for tests.

B batch, S queries, T keys, K key-value heads, G heads that share one, D head width.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import OUTPUT_TAG, allowed_pairs, attention_op
from dovetail.parallel import tag

# Up to this many queries all scores at once are as good as anything (as when decoding).
FEW_QUERIES = 127


def _is_slow(query_BSHD: jax.Array, *_: Any, **__: Any) -> bool:
    return query_BSHD.shape[1] > FEW_QUERIES


@attention_op.register("reference", slow=_is_slow)
def reference(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKD: jax.Array,
    *,
    mask: Mask,
    query_positions_BS: jax.Array,
    key_positions_BT: jax.Array,
    query_segments_BS: jax.Array | None,
    key_segments_BT: jax.Array | None,
    aligned: bool,
    scale: float,
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
    score_BKGST = jnp.where(allowed_BKGST, score_BKGST * scale, jnp.finfo(jnp.float32).min)
    share_BKGST = jax.nn.softmax(score_BKGST, axis=-1)
    # Where a query sees no key, the softmax spread its share evenly: take it back.
    share_BKGST = jnp.where(allowed_BKGST, share_BKGST, 0).astype(value_BTKD.dtype)
    mixed_BSKGD = jnp.einsum(
        "bkgst,btkd->bskgd", share_BKGST, value_BTKD, preferred_element_type=jnp.float32
    )
    mixed_BSHD = mixed_BSKGD.reshape(query_BSHD.shape).astype(query_BSHD.dtype)
    return tag(mixed_BSHD, OUTPUT_TAG)
