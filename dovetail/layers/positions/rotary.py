"""Rotary embedding: queries and keys are turned by angles that grow with their positions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import ConfigError, ConfigOf
from dovetail.layers.positions.none import AnyPositions
from dovetail.layers.positions.scaling import FrequencyScaling, NoScaling


class RotaryEmbedding(AnyPositions):
    """RoPE: rotates pairs of features by angles that grow with position (https://arxiv.org/abs/2104.09864).

    Feature i is paired with feature i + D/2, as Hugging Face's Llama does.
    """

    class Config(AnyPositions.Config):
        """Only the first `fraction` of the head width is rotated.

        A scaling stretches the frequencies, for sequences longer than those of pre-training.
        """

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
        self, query_BSHD: jax.Array, key_BSKD: jax.Array, positions_BS: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Rotates both by the angles of their positions."""
        # In double precision, because an error grows with the position it is multiplied by.
        exponents = np.arange(0, self.width, 2, dtype=np.float64) / self.width
        frequencies = self.scaling.scaled(self.base**-exponents, self.base)
        angles_BSD = positions_BS[..., None].astype(jnp.float32) * frequencies.astype(np.float32)
        cosine = jnp.cos(angles_BSD)[:, :, None, :] * self.scaling.magnitude
        sine = jnp.sin(angles_BSD)[:, :, None, :] * self.scaling.magnitude
        return self._turned(query_BSHD, cosine, sine), self._turned(key_BSKD, cosine, sine)

    def _turned(self, x_BSHD: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
        turned = self._rotate(x_BSHD[..., : self.width].astype(jnp.float32), cosine, sine)
        turned = turned.astype(x_BSHD.dtype)
        if self.width == x_BSHD.shape[-1]:
            return turned
        return jnp.concatenate([turned, x_BSHD[..., self.width :]], axis=-1)

    def _rotate(self, x_BSHD: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
        first, second = jnp.split(x_BSHD, 2, axis=-1)
        rotated = [first * cosine - second * sine, second * cosine + first * sine]
        return jnp.concatenate(rotated, axis=-1)


def rotary(old: Any, **values: Any) -> Any:
    """Returns rotary positions with these values; what is rotary already keeps its pairs."""
    is_rotary = isinstance(old, RotaryEmbedding.Config)
    return old.set(**values) if is_rotary else RotaryEmbedding.Config(**values)
