"""Rotary embedding with neighbours paired, as in the paper."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.layers.positions.rotary import RotaryEmbedding


class InterleavedRotaryEmbedding(RotaryEmbedding):
    """RoPE that pairs feature 2i with feature 2i + 1, as in the paper and in DeepSeek's models."""

    class Config(RotaryEmbedding.Config):
        """As that of RotaryEmbedding."""

    def _rotate(self, x_BSHD: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
        # The result is left in the order of halves: queries and keys agree on it, and only their
        # products are looked at.
        halves = jnp.concatenate([x_BSHD[..., ::2], x_BSHD[..., 1::2]], axis=-1)
        return super()._rotate(halves, cosine, sine)
