"""Norms: RMSNorm and LayerNorm. Statistics are taken in float32, whatever comes in."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED
from dovetail.module import Constant, Module, parameter


class RMSNorm(Module):
    """Divides by the root mean square (https://arxiv.org/abs/1910.07467)."""

    class Config(Module.Config["RMSNorm"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        epsilon: float = 1e-6

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.epsilon = config.epsilon
        self.scale = parameter(
            (config.width,), ("embed",), Constant.Config(value=1.0), decays=False
        )

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Keeps the shape and type."""
        x = x_BSE.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return (x * inverse).astype(x_BSE.dtype) * self.scale.astype(x_BSE.dtype)


class LayerNorm(Module):
    """Centres and divides by the standard deviation (https://arxiv.org/abs/1607.06450)."""

    class Config(Module.Config["LayerNorm"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        epsilon: float = 1e-5
        bias: bool = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.epsilon, self.has_bias = config.epsilon, config.bias
        self.scale = parameter(
            (config.width,), ("embed",), Constant.Config(value=1.0), decays=False
        )
        if config.bias:
            self.bias = parameter((config.width,), ("embed",), Constant.Config(), decays=False)

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Keeps the shape and type."""
        x = x_BSE.astype(jnp.float32)
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        y = (centred * jax.lax.rsqrt(variance + self.epsilon)).astype(x_BSE.dtype)
        y = y * self.scale.astype(x_BSE.dtype)
        return y + self.bias.astype(x_BSE.dtype) if self.has_bias else y
