"""The chunked scan of recurrent layers: parallel within a chunk, sequential across chunks.

The backward pass saves only the states between chunks and recomputes the rest. So memory grows
linearly with the sequence.

B batch, S sequence, L query tokens of a chunk, M key tokens of a chunk, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def chunked_scan(
    body: Callable[[Any, Any], tuple[Any, jax.Array]], state: Any, inputs: Any, length: int
) -> tuple[Any, jax.Array]:
    """Scans `body` over chunks of the inputs; returns the final state and all outputs.

    Args:
        body: maps (state, chunk of the inputs) to (state, output [B, L, ...]).
        state: the initial state.
        inputs: arrays [B, S, ...]; the last chunk is padded with zeros, which `body` must ignore.
        length: the number of tokens per chunk.
    """
    total = jax.tree.leaves(inputs)[0].shape[1]
    length = min(length, total)
    if length == total:
        return body(state, inputs)
    count = -(-total // length)

    def split(array: jax.Array) -> jax.Array:
        padding = [(0, 0), (0, count * length - total), *[(0, 0)] * (array.ndim - 2)]
        chunks = jnp.pad(array, padding).reshape(-1, count, length, *array.shape[2:])
        return jnp.moveaxis(chunks, 1, 0)

    rematted = jax.checkpoint(body, prevent_cse=False)
    state, outputs = jax.lax.scan(rematted, state, jax.tree.map(split, inputs))
    outputs = jnp.moveaxis(outputs, 0, 1)
    return state, outputs.reshape(-1, count * length, *outputs.shape[3:])[:, :total]


class ChunkDecay:
    """Cumulative decays within one chunk; zero across the start of a sequence."""

    def __init__(self, log_decay_BLH: jax.Array, starts_BL: jax.Array) -> None:
        self._sum_BHL = jnp.cumsum(log_decay_BLH, axis=1).swapaxes(1, 2)
        self._run_BL = jnp.cumsum(starts_BL, axis=1, dtype=jnp.int32)

    def pairwise(self) -> jax.Array:
        """The decay from token M to token L, 0 where M > L: [B, H, L, M]."""
        run_BL, sum_BHL = self._run_BL, self._sum_BHL
        length = run_BL.shape[1]
        is_visible_BLM = run_BL[:, :, None] == run_BL[:, None, :]
        is_visible_BLM &= jnp.tril(jnp.ones((length, length), bool))
        return _masked_exp(is_visible_BLM[:, None], sum_BHL[..., :, None] - sum_BHL[..., None, :])

    def from_initial(self) -> jax.Array:
        """The decay from the initial state to each token: [B, H, L]."""
        return _masked_exp((self._run_BL == 0)[:, None], self._sum_BHL)

    def to_final(self) -> jax.Array:
        """The decay from each token to the final state: [B, H, L]."""
        is_last_BL = self._run_BL == self._run_BL[:, -1:]
        return _masked_exp(is_last_BL[:, None], self._sum_BHL[..., -1:] - self._sum_BHL)

    def total(self) -> jax.Array:
        """The decay from the initial to the final state: [B, H]."""
        return self.from_initial()[..., -1]


def _masked_exp(is_visible: jax.Array, log: jax.Array) -> jax.Array:
    # Masked before exp: masked entries must neither overflow nor have a gradient.
    return jnp.exp(jnp.where(is_visible, log, -jnp.inf))
