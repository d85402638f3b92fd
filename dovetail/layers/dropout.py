"""Dropout."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError
from dovetail.module import Module


class Dropout(Module):
    """Zeroes values at random in training, and scales the others to keep the mean."""

    class Config(Module.Config["Dropout"]):
        """The probability of dropping a value."""

        rate: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not 0.0 <= config.rate < 1.0:
            raise ConfigError(
                f"{config.locate('rate')}: expected 0 or more and less than 1, got {config.rate}."
            )
        self.rate = config.rate

    def __call__(self, x: jax.Array) -> jax.Array:
        """Keeps the shape; the identity outside training."""
        if self.rate == 0.0 or not self.training:
            return x
        kept = jax.random.bernoulli(self.random_key("dropout"), 1.0 - self.rate, x.shape)
        return jnp.where(kept, x / (1.0 - self.rate), jnp.zeros_like(x))
