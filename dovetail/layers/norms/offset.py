"""RMSNorm whose parameter is an offset from 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.layers.norms.rms import RMSNorm


class OffsetRMSNorm(RMSNorm):
    """RMSNorm whose parameter is the scale's distance from 1, so that decay pulls to 1 (Gemma)."""

    first_scale = 0.0

    class Config(RMSNorm.Config):
        """As that of RMSNorm."""

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Keeps the shape and type; scaled in float32."""
        normed = self._normed(x_BSE.astype(jnp.float32))
        return (normed * (1.0 + self.scale.astype(jnp.float32))).astype(x_BSE.dtype)
