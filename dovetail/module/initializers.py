"""Initializers of parameters. Each is a component, so that a config can swap it."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import Component


class Initializer(Protocol):
    """Initializes one parameter, given its shape and fans."""

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns a float32 array of the given shape."""
        ...


class ConstantInitializer(Component):
    """Fills with a constant."""

    class Config(Component.Config["ConstantInitializer"]):
        value: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.value = config.value

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns the constant; the key is not used."""
        return jnp.full(shape, self.value, jnp.float32)


class Normal(Component):
    """Normal distribution with a given standard deviation."""

    class Config(Component.Config["Normal"]):
        standard_deviation: float = 0.02

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.standard_deviation = config.standard_deviation

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns normal samples."""
        return self.standard_deviation * jax.random.normal(key, shape, jnp.float32)


class VarianceScaling(Component):
    """Truncated normal distribution with variance `scale / fan` (jax.nn.initializers)."""

    class Config(Component.Config["VarianceScaling"]):
        """The fan that divides the variance, and its scale."""

        scale: float = 1.0
        fan: Literal["in", "out", "average"] = "in"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.scale, self.fan = config.scale, config.fan

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns samples truncated at two standard deviations."""
        fans = {"in": fan_in, "out": fan_out, "average": (fan_in + fan_out) / 2}
        # Truncation leaves 0.8796 of the standard deviation; correct for it.
        deviation = math.sqrt(self.scale / max(1.0, fans[self.fan])) / 0.87962566103423978
        return deviation * jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)
