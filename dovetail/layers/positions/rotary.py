"""Rotary position embedding (RoPE).

N frequencies, one for each rotated pair of features, beside the letters of all layers.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import Component, ConfigError, ConfigOf
from dovetail.layers.context import TokenContext
from dovetail.layers.positions.base import BasePositions


class FrequencyScaling(Protocol):
    """Changes the rotary frequencies, to extend the context; see `rope_scaling`."""

    magnitude: float
    """A factor on the rotated features (YaRN's attention temperature)."""

    def scaled(self, frequencies: np.ndarray, base: float, /) -> np.ndarray:
        """Returns the new frequencies, given those of all pairs, fastest first (float64)."""
        ...


class NoScaling(Component):
    """Keeps the frequencies."""

    magnitude = 1.0

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Returns its input."""
        return frequencies


class RotaryEmbedding(BasePositions):
    """RoPE: rotates pairs of features by angles that grow with position (https://arxiv.org/abs/2104.09864).

    Feature i is paired with feature i + D/2, as Hugging Face's Llama does.
    """

    class Config(BasePositions.Config):
        """Only the first `fraction` of the head dim is rotated (partial RoPE)."""

        base: float = 10_000.0
        fraction: float = 1.0
        scaling: ConfigOf[FrequencyScaling] = NoScaling.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.base, self.scaling = config.base, config.scaling.build()
        self.width = int(config.head_width * config.fraction)
        if self.width % 2 or not 0 < self.width <= config.head_width:
            rotated = "" if config.fraction == 1 else f", of which {config.fraction} are rotated"
            raise ConfigError(
                f"{config.locate('head_width')}: rotary embedding rotates pairs of features, so it "
                f"needs an even head width, got {config.head_width}{rotated}. Set the "
                "attention's head_width, or choose another number of heads."
            )

    def __call__(
        self, q_BSHD: jax.Array, k_BSKD: jax.Array, context: TokenContext
    ) -> tuple[jax.Array, jax.Array]:
        """Applies the rotary embedding: rotates queries and keys by angles of their positions."""
        # In float64: the error of a frequency is multiplied by the position.
        exponents = np.arange(0, self.width, 2, dtype=np.float64) / self.width
        frequencies = self.scaling.scaled(self.base**-exponents, self.base)
        angles_BSN = self.angles(frequencies.astype(np.float32), context)
        cosine = jnp.cos(angles_BSN)[:, :, None, :] * self.scaling.magnitude
        sine = jnp.sin(angles_BSN)[:, :, None, :] * self.scaling.magnitude
        return self._encode(q_BSHD, cosine, sine), self._encode(k_BSKD, cosine, sine)

    def angles(self, frequencies: np.ndarray, context: TokenContext) -> jax.Array:
        """Returns the angle of each pair [B, S, D/2].

        A subclass may use several axes: `context.positions_on_axes(num_axes)`.
        """
        return context.positions_BS[..., None].astype(jnp.float32) * frequencies

    def _encode(self, x_BSHD: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
        rotated = self._rotate(x_BSHD[..., : self.width].astype(jnp.float32), cosine, sine)
        rotated = rotated.astype(x_BSHD.dtype)
        if self.width == x_BSHD.shape[-1]:
            return rotated
        return jnp.concatenate([rotated, x_BSHD[..., self.width :]], axis=-1)

    def _rotate(self, x_BSHD: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
        first, second = jnp.split(x_BSHD, 2, axis=-1)
        rotated = [first * cosine - second * sine, second * cosine + first * sine]
        return jnp.concatenate(rotated, axis=-1)


def rotary(old: Any, **values: Any) -> Any:
    """Returns rotary positions with these values; an existing rotary config keeps its pairing."""
    is_rotary = isinstance(old, RotaryEmbedding.Config)
    return old.set(**values) if is_rotary else RotaryEmbedding.Config(**values)


class InterleavedRotaryEmbedding(RotaryEmbedding):
    """RoPE that pairs feature 2i with 2i + 1, as in the paper and in DeepSeek's models."""

    def _rotate(self, x_BSHD: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
        # The output stays in split-half order: queries and keys agree on it, and only their dot
        # products matter.
        halves = jnp.concatenate([x_BSHD[..., ::2], x_BSHD[..., 1::2]], axis=-1)
        return super()._rotate(halves, cosine, sine)
