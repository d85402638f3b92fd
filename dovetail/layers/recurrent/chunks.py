"""Chunks: a recurrence over pieces of the sequence, each of which is computed at once.

What is kept for the backward pass is the state between chunks; the rest is computed again. So
memory grows with the sequence, and not with its square.

B batch, S sequence, L tokens of a chunk (M: the same, as the one that is looked at), H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def over_chunks(
    body: Callable[[Any, Any], tuple[Any, jax.Array]], state: Any, inputs: Any, length: int
) -> tuple[Any, jax.Array]:
    """Runs `body` over chunks of the inputs, and returns the last state and all results.

    Args:
        body: from (state, chunk of the inputs) to (state, result [B, L, ...]).
        state: what the first chunk begins with.
        inputs: arrays [B, S, ...]; the last chunk is filled up with zeros, which must be padding.
        length: how many tokens make a chunk.
    """
    whole = jax.tree.leaves(inputs)[0].shape[1]
    length = min(length, whole)
    if length == whole:
        return body(state, inputs)
    count = -(-whole // length)

    def split(array: jax.Array) -> jax.Array:
        fill = [(0, 0), (0, count * length - whole), *[(0, 0)] * (array.ndim - 2)]
        pieces = jnp.pad(array, fill).reshape(-1, count, length, *array.shape[2:])
        return jnp.moveaxis(pieces, 1, 0)

    again = jax.checkpoint(body, prevent_cse=False)
    state, results = jax.lax.scan(again, state, jax.tree.map(split, inputs))
    results = jnp.moveaxis(results, 0, 1)
    return state, results.reshape(-1, count * length, *results.shape[3:])[:, :whole]


class Fading:
    """What is left, within one chunk, of one token when another is read.

    A sequence that begins in the chunk sees nothing of what stands before it.
    """

    def __init__(self, log_decay_BLH: jax.Array, starts_BL: jax.Array) -> None:
        """Takes each token's decay, and where sequences begin."""
        self._sum_BHL = jnp.cumsum(log_decay_BLH, axis=1).swapaxes(1, 2)
        self._run_BL = jnp.cumsum(starts_BL, axis=1, dtype=jnp.int32)

    def between(self) -> jax.Array:
        """From token M to a token L that is not before it; 0 for others: [B, H, L, M]."""
        run_BL, sum_BHL = self._run_BL, self._sum_BHL
        length = run_BL.shape[1]
        is_seen_BLM = run_BL[:, :, None] == run_BL[:, None, :]
        is_seen_BLM &= jnp.tril(jnp.ones((length, length), bool))
        return _power(is_seen_BLM[:, None], sum_BHL[..., :, None] - sum_BHL[..., None, :])

    def from_before(self) -> jax.Array:
        """From the state before the chunk to each token: [B, H, L]."""
        return _power((self._run_BL == 0)[:, None], self._sum_BHL)

    def to_the_end(self) -> jax.Array:
        """From each token to the state after the chunk: [B, H, L]."""
        is_last_BL = self._run_BL == self._run_BL[:, -1:]
        return _power(is_last_BL[:, None], self._sum_BHL[..., -1:] - self._sum_BHL)

    def across(self) -> jax.Array:
        """From the state before the chunk to the one after it: [B, H]."""
        return self.from_before()[..., -1]


def _power(is_seen: jax.Array, log: jax.Array) -> jax.Array:
    # Before the exponential: what is not seen must neither overflow nor have a gradient.
    return jnp.exp(jnp.where(is_seen, log, -jnp.inf))
