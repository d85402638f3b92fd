"""RMSNorm, and what all norms have in common. Statistics are taken in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED
from dovetail.module import Constant, Module, parameter


class AnyNorm(Module):
    """What norms have in common: `replace(config, AnyNorm, ...)` finds them all."""

    class Config(Module.Config["AnyNorm"]):
        """The width and its logical axis are set by the parent."""

        width: int = REQUIRED
        axis: str | None = "embed"


class RMSNorm(AnyNorm):
    """Divides by the root mean square (https://arxiv.org/abs/1910.07467)."""

    first_scale = 1.0

    class Config(AnyNorm.Config):
        """What keeps the divisor from 0."""

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
