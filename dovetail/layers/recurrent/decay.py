"""Decay: how fast each head forgets, told by the token that it reads."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf, Part
from dovetail.layers.interfaces import Exact, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.module import Initializer, Module, parameter


class LogOfUniform(Part):
    """The logarithm of values between two numbers, each as likely as the other."""

    class Config(Part.Config["LogOfUniform"]):
        """The bounds of the values."""

        low: float = 1.0
        high: float = 16.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.low, self.high = config.low, config.high

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns the logarithms."""
        return jnp.log(jax.random.uniform(key, shape, jnp.float32, self.low, self.high))


class InverseSoftplus(Part):
    """What softplus makes values between two numbers of, each magnitude as likely as the other."""

    class Config(Part.Config["InverseSoftplus"]):
        """The bounds of the values."""

        low: float = 1e-3
        high: float = 1e-1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.low, self.high = config.low, config.high

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns the arguments of softplus."""
        low, high = jnp.log(self.low), jnp.log(self.high)
        value = jnp.exp(jax.random.uniform(key, shape, jnp.float32, low, high))
        return value + jnp.log(-jnp.expm1(-value))


class Decays(NamedTuple):
    """For each token and head, in float32.

    Attributes:
        step_BSH: how long the token lasts; 0 at padding.
        log_decay_BSH: the logarithm of what is left of the state after it; 0 at padding.
    """

    step_BSH: jax.Array
    log_decay_BSH: jax.Array


class Decay(Exact, Module):
    """A step that the token chooses, times a rate that the head learns (arXiv 2312.00752)."""

    class Config(Module.Config["Decay"]):
        """Sizes are set by the parent."""

        width: int = REQUIRED
        num_heads: int = REQUIRED
        projection: ConfigOf[TokenMap] = Linear.Config()
        step_init: ConfigOf[Initializer] = InverseSoftplus.Config()
        rate_init: ConfigOf[Initializer] = LogOfUniform.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        heads = config.num_heads
        self.projection = config.projection.build(
            in_features=config.width, in_axis="embed", out_features=heads, out_axis="heads"
        )
        # Whatever the model computes in: small errors here add up over all tokens.
        exact = {"decays": False, "keeps_dtype": True}
        self.step_bias = parameter((heads,), ("heads",), config.step_init, **exact)
        self.log_rate = parameter((heads,), ("heads",), config.rate_init, **exact)

    def __call__(self, x_BSE: jax.Array, real_BS: jax.Array) -> Decays:
        """Returns steps and decays; padding takes no time."""
        asked_BSH = self.projection(x_BSE).astype(jnp.float32)
        step_BSH = jax.nn.softplus(asked_BSH + self.step_bias) * real_BS[..., None]
        return Decays(step_BSH, -jnp.exp(self.log_rate) * step_BSH)
