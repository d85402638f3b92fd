"""Input-dependent decay of recurrent states: exp(-rate * step), as in Mamba."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, Component, ConfigOf
from dovetail.layers.interfaces import PrecisionSensitive, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.module import Initializer, Module, parameter


class LogOfUniform(Component):
    """The log of uniform values (A_log in Mamba)."""

    class Config(Component.Config["LogOfUniform"]):
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


class InverseSoftplus(Component):
    """The inverse softplus of log-uniform values (dt_bias in Mamba)."""

    class Config(Component.Config["InverseSoftplus"]):
        low: float = 1e-3
        high: float = 1e-1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.low, self.high = config.low, config.high

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns the inverse softplus."""
        low, high = jnp.log(self.low), jnp.log(self.high)
        value = jnp.exp(jax.random.uniform(key, shape, jnp.float32, low, high))
        return value + jnp.log(-jnp.expm1(-value))


class Decays(NamedTuple):
    """Steps and decays of each token and head, in float32.

    Attributes:
        step_BSH: the step size (dt in Mamba); 0 at padding.
        log_decay_BSH: the log of the factor on the state; 0 at padding.
    """

    step_BSH: jax.Array
    log_decay_BSH: jax.Array


class Decay(PrecisionSensitive, Module):
    """An input-dependent step times a learned rate per head (https://arxiv.org/abs/2312.00752)."""

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
        # Kept in float32, whatever the model's dtype: errors accumulate over all tokens.
        exact = {"decays": False, "keeps_dtype": True}
        self.step_bias = parameter((heads,), ("heads",), config.step_init, **exact)
        self.log_rate = parameter((heads,), ("heads",), config.rate_init, **exact)

    def __call__(self, x_BSE: jax.Array, real_BS: jax.Array) -> Decays:
        """Returns steps and decays; padding has step 0."""
        logits_BSH = self.projection(x_BSE).astype(jnp.float32)
        step_BSH = jax.nn.softplus(logits_BSH + self.step_bias) * real_BS[..., None]
        return Decays(step_BSH, -jnp.exp(self.log_rate) * step_BSH)
