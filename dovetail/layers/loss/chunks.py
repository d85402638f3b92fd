"""Chunked sums over tokens, for terms that need logits of the whole vocabulary.

B batch, S sequence, K chunks, L tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dovetail.kernels.cross_entropy import count_chunks


def sum_over_chunks(function: Callable[..., jax.Array], *arrays_BS: jax.Array) -> jax.Array:
    """Sums a function over chunks of the sequence, in a scan.

    The backward pass recomputes each chunk, so only one is in memory. The batch is not chunked, so
    its sharding does not change.

    Args:
        function: maps chunks of all arrays [B, L, ...] to a scalar. The last chunk is padded with
            zeros.
        arrays_BS: each [B, S, ...].
    """
    batch, sequence = arrays_BS[0].shape[:2]
    chunks = count_chunks(batch, sequence)
    length = -(-sequence // chunks)

    def split(array: jax.Array) -> jax.Array:
        padding = [(0, 0), (0, length * chunks - sequence), *[(0, 0)] * (array.ndim - 2)]
        array = jnp.pad(array, padding) if padding[1][1] else array
        return jnp.moveaxis(array.reshape(batch, chunks, length, *array.shape[2:]), 1, 0)

    @jax.checkpoint
    def add(total: jax.Array, chunk: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        return total + function(*chunk), None

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.scan(add, zero, tuple(split(array) for array in arrays_BS))[0]
