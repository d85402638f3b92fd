"""Shapes and products of blockwise attention: between the op's axes and one matrix a head.

B batch, S queries, T keys, H heads, K key-value heads, G heads that share one, D width of queries
and keys, W of values, R = G times S.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def by_head(
    query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKW: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Puts the heads in front: queries as [B, K, G, S, D], keys and values as [B, K, T, width]."""
    query_BKGSD = to_heads(query_BSHD, key_BTKD.shape[2])
    return query_BKGSD, key_BTKD.transpose(0, 2, 1, 3), value_BTKW.transpose(0, 2, 1, 3)


def to_heads(x_BSHD: jax.Array, kv_heads: int) -> jax.Array:
    """Turns [B, S, H, D] into [B, K, G, S, D]."""
    batch, queries, heads, width = x_BSHD.shape
    x_BSKGD = x_BSHD.reshape(batch, queries, kv_heads, heads // kv_heads, width)
    return x_BSKGD.transpose(0, 2, 3, 1, 4)


def from_heads(x_BKGSD: jax.Array) -> jax.Array:
    """Turns [B, K, G, S, D] into [B, S, H, D]."""
    batch, kv_heads, shared, queries, width = x_BKGSD.shape
    return x_BKGSD.transpose(0, 3, 1, 2, 4).reshape(batch, queries, kv_heads * shared, width)


def as_rows(array: jax.Array, axis: int) -> jax.Array:
    """Merges G and S, which stand at `axis` and after it, into R."""
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])


def product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """Multiplies in the dtype of the factors, and sums in float32."""
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def add_at(total_BKTD: jax.Array, part_BKTD: jax.Array, start: int) -> jax.Array:
    """Adds to a range of keys, in place once compiled."""
    summed = jax.lax.slice_in_dim(total_BKTD, start, start + part_BKTD.shape[2], axis=2) + part_BKTD
    return jax.lax.dynamic_update_slice_in_dim(total_BKTD, summed, start, axis=2)
