"""Sums over tokens that need scores of the whole vocabulary, without holding all of them.

B batch, S sequence, K chunks, L tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dovetail.kernels.cross_entropy import count_chunks


def sum_over_chunks(function: Callable[..., jax.Array], *arrays_BS: jax.Array) -> jax.Array:
    """Adds up what a function gives for parts of the sequence, one after the other.

    Going backwards each part is computed anew, so that memory is needed for one part only. The
    batch stays whole, and so it stays split over devices as it was.

    Args:
        function: from the parts of all arrays [B, L, ...] to a scalar. What fills up the last part
            is zeros.
        arrays_BS: each [B, S, ...].
    """
    batch, sequence = arrays_BS[0].shape[:2]
    chunks = count_chunks(batch, sequence)
    length = -(-sequence // chunks)

    def split(array: jax.Array) -> jax.Array:
        missing = [(0, 0), (0, length * chunks - sequence), *[(0, 0)] * (array.ndim - 2)]
        array = jnp.pad(array, missing) if missing[1][1] else array
        return jnp.moveaxis(array.reshape(batch, chunks, length, *array.shape[2:]), 1, 0)

    @jax.checkpoint
    def add(total: jax.Array, parts: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        return total + function(*parts), None

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.scan(add, zero, tuple(split(array) for array in arrays_BS))[0]
