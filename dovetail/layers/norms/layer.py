"""LayerNorm: centred and divided by the standard deviation."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.layers.norms.rms import AnyNorm
from dovetail.module import Constant, parameter


class LayerNorm(AnyNorm):
    """Centres and divides by the standard deviation (https://arxiv.org/abs/1607.06450)."""

    class Config(AnyNorm.Config):
        """What keeps the divisor from 0, and whether a bias is added."""

        epsilon: float = 1e-5
        bias: bool = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.epsilon, self.has_bias = config.epsilon, config.bias
        self.scale = parameter(
            (config.width,), (config.axis,), Constant.Config(value=1.0), decays=False
        )
        if config.bias:
            self.bias = parameter((config.width,), (config.axis,), Constant.Config(), decays=False)

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Keeps the shape and type."""
        x = x_BSE.astype(jnp.float32)
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        y = (centred * jax.lax.rsqrt(variance + self.epsilon)).astype(x_BSE.dtype)
        y = y * self.scale.astype(x_BSE.dtype)
        return y + self.bias.astype(x_BSE.dtype) if self.has_bias else y
