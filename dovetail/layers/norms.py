"""Norms over the last axis, with any axes before it. Statistics are computed in float32."""

from __future__ import annotations

from typing import Any, Generic

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf, T_co
from dovetail.layers.interfaces import TokenMap
from dovetail.module import ConstantInitializer, Module, parameter


class BaseNorm(Module):
    """The base of norms: `replace(config, BaseNorm, ...)` finds them all."""

    class Config(Module.Config["BaseNorm"]):
        """The width and its logical axis are set by the parent."""

        width: int = REQUIRED
        axis: str | None = "embed"


class RMSNorm(BaseNorm):
    """Root mean square norm (https://arxiv.org/abs/1910.07467)."""

    initial_scale = 1.0

    class Config(BaseNorm.Config):
        """`epsilon` is added to the mean square."""

        epsilon: float = 1e-6

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.epsilon = config.epsilon
        init = ConstantInitializer.Config(value=self.initial_scale)
        self.scale = parameter((config.width,), (config.axis,), init, decays=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Keeps shape and dtype."""
        normed = self._normed(x.astype(jnp.float32))
        return normed.astype(x.dtype) * self.scale.astype(x.dtype)

    def _normed(self, x: jax.Array) -> jax.Array:
        inverse = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return x * inverse


class OffsetRMSNorm(RMSNorm):
    """RMSNorm with the scale 1 + parameter, so that weight decay pulls it towards 1 (Gemma)."""

    initial_scale = 0.0

    def __call__(self, x: jax.Array) -> jax.Array:
        """Keeps shape and dtype; scales in float32."""
        normed = self._normed(x.astype(jnp.float32))
        return (normed * (1.0 + self.scale.astype(jnp.float32))).astype(x.dtype)


class LayerNorm(BaseNorm):
    """Layer norm (https://arxiv.org/abs/1607.06450)."""

    class Config(BaseNorm.Config):
        """`epsilon` is added to the variance."""

        epsilon: float = 1e-5
        bias: bool = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.epsilon, self.has_bias = config.epsilon, config.bias
        shape, axes = (config.width,), (config.axis,)
        self.scale = parameter(shape, axes, ConstantInitializer.Config(value=1.0), decays=False)
        if config.bias:
            self.bias = parameter(shape, axes, ConstantInitializer.Config(), decays=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Keeps shape and dtype."""
        x_f32 = x.astype(jnp.float32)
        centered = x_f32 - jnp.mean(x_f32, axis=-1, keepdims=True)
        variance = jnp.mean(centered * centered, axis=-1, keepdims=True)
        y = (centered * jax.lax.rsqrt(variance + self.epsilon)).astype(x.dtype)
        y = y * self.scale.astype(x.dtype)
        return y + self.bias.astype(x.dtype) if self.has_bias else y


class DynamicTanh(BaseNorm):
    """Dynamic Tanh: scale * tanh(steepness * x) + bias (https://arxiv.org/abs/2503.10622).

    It is elementwise: there are no statistics to reduce over the width. The steepness (the paper's
    alpha) is a learned scalar.
    """

    class Config(BaseNorm.Config):
        """The initial steepness; the paper lowers it for large models, except before attention."""

        first_steepness: float = 0.5

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        init = ConstantInitializer.Config(value=config.first_steepness)
        shape, axes = (config.width,), (config.axis,)
        self.steepness = parameter((), (), init, decays=False)
        self.scale = parameter(shape, axes, ConstantInitializer.Config(value=1.0), decays=False)
        self.bias = parameter(shape, axes, ConstantInitializer.Config(), decays=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Keeps shape and dtype; computes the tanh in float32."""
        x_f32 = x.astype(jnp.float32)
        y = jnp.tanh(self.steepness.astype(jnp.float32) * x_f32).astype(x.dtype)
        return y * self.scale.astype(x.dtype) + self.bias.astype(x.dtype)


class NoNorm(BaseNorm):
    """The identity, in place of a norm."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns its input."""
        return x


class HasFinalNorm(Module):
    """A module that ends in the final norm before the logits: a decoder, or a further head.

    `replace(config, HasFinalNorm, ...)` finds all of them, to scale logits or to swap norms.
    """

    class Config(Module.Config[T_co], Generic[T_co]):
        """The width is set by the parent."""

        width: int = REQUIRED
        norm: ConfigOf[TokenMap] = RMSNorm.Config()

    def __init__(self, config: Config[Any]) -> None:
        super().__init__(config)
        self.norm = config.norm.build(width=config.width)
