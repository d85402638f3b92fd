"""Position encodings that rotate queries and keys, or leave them alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module


class NoPositions(Module):
    """No position encoding: order is known from the causal mask alone."""

    class Config(Module.Config["NoPositions"]):
        """The head width is set by the parent, and not used."""

        head_width: int = REQUIRED

    def __call__(
        self, query_BSHD: jax.Array, key_BSKD: jax.Array, positions_BS: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns both as they are."""
        return query_BSHD, key_BSKD


class RotaryEmbedding(Module):
    """RoPE: rotates pairs of features by angles that grow with position (https://arxiv.org/abs/2104.09864).

    Feature i is paired with feature i + D/2, as Hugging Face's Llama does.
    """

    class Config(Module.Config["RotaryEmbedding"]):
        """The head width is set by the parent."""

        head_width: int = REQUIRED
        base: float = 10_000.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.head_width % 2:
            raise ConfigError(
                f"{config.locate('head_width')}: rotary embedding rotates pairs of features, so it "
                f"needs an even head width, got {config.head_width}. Set the "
                "attention's head_width, or choose another number of heads."
            )
        self.head_width, self.base = config.head_width, config.base

    def frequencies(self) -> jax.Array:
        """Returns the angle per position of each pair; scalings override this."""
        # In double precision, because an error grows with the position that it is multiplied by.
        exponents = np.arange(0, self.head_width, 2, dtype=np.float64) / self.head_width
        return jnp.asarray(self.base**-exponents, jnp.float32)

    def __call__(
        self, query_BSHD: jax.Array, key_BSKD: jax.Array, positions_BS: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Rotates both by the angles of their positions."""
        angles_BSD = positions_BS[..., None].astype(jnp.float32) * self.frequencies()
        cosine, sine = jnp.cos(angles_BSD)[:, :, None, :], jnp.sin(angles_BSD)[:, :, None, :]
        return _rotate(query_BSHD, cosine, sine), _rotate(key_BSKD, cosine, sine)


def _rotate(x_BSHD: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    first, second = jnp.split(x_BSHD.astype(jnp.float32), 2, axis=-1)
    rotated = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(rotated, axis=-1).astype(x_BSHD.dtype)
