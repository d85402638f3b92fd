"""Norms: RMSNorm, the same with an offset, and LayerNorm. Statistics are taken in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED
from dovetail.module import Constant, Module, parameter


class RMSNorm(Module):
    """Divides by the root mean square (https://arxiv.org/abs/1910.07467)."""

    first_scale = 1.0

    class Config(Module.Config["RMSNorm"]):
        """The width and its logical axis are set by the parent."""

        width: int = REQUIRED
        axis: str | None = "embed"
        epsilon: float = 1e-6

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.epsilon = config.epsilon
        first = Constant.Config(value=self.first_scale)
        self.scale = parameter((config.width,), (config.axis,), first, decays=False)

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Keeps the shape and type."""
        normed = self._normed(x_BSE.astype(jnp.float32))
        return normed.astype(x_BSE.dtype) * self.scale.astype(x_BSE.dtype)

    def _normed(self, x: jax.Array) -> jax.Array:
        inverse = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x * inverse


class OffsetRMSNorm(RMSNorm):
    """RMSNorm whose parameter is the scale's distance from 1, so that decay pulls to 1 (Gemma)."""

    first_scale = 0.0

    class Config(RMSNorm.Config):
        """As that of RMSNorm."""

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Keeps the shape and type; scaled in float32."""
        normed = self._normed(x_BSE.astype(jnp.float32))
        return (normed * (1.0 + self.scale.astype(jnp.float32))).astype(x_BSE.dtype)


class LayerNorm(Module):
    """Centres and divides by the standard deviation (https://arxiv.org/abs/1607.06450)."""

    class Config(Module.Config["LayerNorm"]):
        """The width and its logical axis are set by the parent."""

        width: int = REQUIRED
        axis: str | None = "embed"
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
