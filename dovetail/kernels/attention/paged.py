"""Paged keys and values: blocks of a pool that all sequences share, found by a block table.

A row's key at position p is in block `block_table_BN[row, p // P]` of the pool, at p % P. An entry
outside of the pool, such as -1, is not allocated (PagedAttention, https://arxiv.org/abs/2309.06180).

B batch, T keys, K KV heads, D width, N blocks of a row, M blocks of the pool, P tokens of a block.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def gather_blocks(pool_MPKD: jax.Array, block_table_BN: jax.Array) -> jax.Array:
    """Returns the keys or values of each row: [B, T, K, D], with zeros where not allocated."""
    num_blocks, _, heads, width = pool_MPKD.shape
    # A negative index would count from the end.
    index_BN = jnp.where(block_table_BN < 0, num_blocks, block_table_BN)
    x_BNPKD = pool_MPKD.at[index_BN].get(mode="fill", fill_value=0)
    return x_BNPKD.reshape(len(block_table_BN), -1, heads, width)


def paged_positions(pool_MPKD: jax.Array, block_table_BN: jax.Array) -> jax.Array:
    """Returns the position of each key: its index in the row."""
    batch, length = len(block_table_BN), block_table_BN.shape[1] * pool_MPKD.shape[1]
    return jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))


def paged_segment_ids(
    pool_MPKD: jax.Array, block_table_BN: jax.Array, segment_ids_BT: jax.Array | None = None
) -> jax.Array:
    """Returns segment 1 for the written slots of allocated blocks, and 0 (padding) for the others.

    `segment_ids_BT` is 0 for slots that are not written; None means that all are.
    """
    num_blocks, block_size = pool_MPKD.shape[:2]
    is_allocated_BN = (block_table_BN >= 0) & (block_table_BN < num_blocks)
    is_written_BT = jnp.repeat(is_allocated_BN, block_size, axis=1)
    if segment_ids_BT is not None:
        is_written_BT &= segment_ids_BT != 0
    return is_written_BT.astype(jnp.int32)
