"""The paged KV cache: keys and values in blocks of a pool that all sequences share.

Invariants:
- The block table is an input of the context, so that all layers of a stack share one table: what is
  scheduled once per step is not stored once per layer. Each layer has its own pool.
- A layer reads the table and never changes it. Whoever provides it allocates the blocks of a token
  before the call that writes the token, and gives no block to two sequences that write to it.
- A token without a block is dropped, like one of segment 0.
- A block that another sequence used may hold its keys. The causal mask hides those that are not
  overwritten yet. Where layers hide tokens, the blocks of a new sequence are fresh ones.

B batch, S new tokens, K KV heads, D width, N blocks of a row, M blocks of the pool, P tokens of a
block.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from dovetail.kernels.attention import gather_blocks, paged_positions, paged_segment_ids
from dovetail.layers.attention.kv_cache import BaseKVCache, KeyValues
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext

BLOCK_TABLE = "block_table"
"""The name of the block table [B, N] among the inputs of the context."""


class PagedKVCache(BaseKVCache):
    """A KV cache of blocks (PagedAttention, https://arxiv.org/abs/2309.06180).

    The token of row b at position p is in block `block_table[b, p // block_size]` of the pool. The
    pool is made in the first call, or given with the cache.
    """

    class Config(BaseKVCache.Config):
        """`num_blocks` is the size of the pool; None is enough for every row at its full length."""

        block_size: int = 16
        num_blocks: int | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "block_size", "num_blocks")
        self.block_size, self.num_blocks = config.block_size, config.num_blocks
        self.blocks_per_row = math.ceil(config.length / config.block_size)

    def _shape(self, num_rows: int) -> tuple[int, ...]:
        return self.num_blocks or num_rows * self.blocks_per_row, self.block_size

    def _slots(self, context: TokenContext) -> tuple[jax.Array, ...]:
        table_BN, positions_BS = context.get(BLOCK_TABLE), context.positions_BS
        block_BS = jnp.take_along_axis(
            table_BN, positions_BS // self.block_size, axis=1, mode="fill", fill_value=-1
        )
        is_written_BS = (context.segment_ids_BS > 0) & (block_BS >= 0)
        nowhere = jnp.iinfo(block_BS.dtype).max
        return jnp.where(is_written_BS, block_BS, nowhere), positions_BS % self.block_size

    def _key_values(
        self, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None, context: TokenContext
    ) -> KeyValues:
        table_BN = context.get(BLOCK_TABLE)
        if segment_ids is not None:
            segment_ids = gather_blocks(segment_ids[..., None, None], table_BN)[..., 0, 0]
        tokens_BT = TokenContext(
            paged_positions(k, table_BN), paged_segment_ids(k, table_BN, segment_ids)
        )
        return KeyValues(k, v, tokens_BT, aligned=False, block_table_BN=table_BN)
