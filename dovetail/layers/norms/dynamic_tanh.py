"""Dynamic tanh: a bounded curve in the place of a norm."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.layers.norms.rms import AnyNorm
from dovetail.module import Constant, parameter


class DynamicTanh(AnyNorm):
    """scale * tanh(steepness * x) + bias, with no statistics (https://arxiv.org/abs/2503.10622).

    Each token's numbers are mapped one by one, so nothing is summed over the width. The steepness
    is one number, learned as the others are.
    """

    class Config(AnyNorm.Config):
        """The steepness at first; the paper gives large models less, and attention more."""

        first_steepness: float = 0.5

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        first = Constant.Config(value=config.first_steepness)
        shape, axes = (config.width,), (config.axis,)
        self.steepness = parameter((), (), first, decays=False)
        self.scale = parameter(shape, axes, Constant.Config(value=1.0), decays=False)
        self.bias = parameter(shape, axes, Constant.Config(), decays=False)

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Keeps the shape and type; the curve is taken in float32."""
        x = x_BSE.astype(jnp.float32)
        y = jnp.tanh(self.steepness.astype(jnp.float32) * x).astype(x_BSE.dtype)
        return y * self.scale.astype(x_BSE.dtype) + self.bias.astype(x_BSE.dtype)
