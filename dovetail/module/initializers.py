"""How parameters get their first values. Each is a small part, so that a config can swap it."""

from __future__ import annotations

import math
from typing import Literal, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import Part


class Initializer(Protocol):
    """Makes the first value of one parameter, from its shape and its fans."""

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns a float32 array of the given shape."""
        ...


class Constant(Part):
    """The same number everywhere."""

    class Config(Part.Config["Constant"]):
        """Zeros by default."""

        value: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.value = config.value

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns the constant; the key is not used."""
        return jnp.full(shape, self.value, jnp.float32)


class Normal(Part):
    """Normal values of a given standard deviation."""

    class Config(Part.Config["Normal"]):
        """The standard deviation."""

        standard_deviation: float = 0.02

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.standard_deviation = config.standard_deviation

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns normal values."""
        return self.standard_deviation * jax.random.normal(key, shape, jnp.float32)


class FanScaled(Part):
    """Truncated normal values whose variance is `scale / fan`, so that signals keep their size."""

    class Config(Part.Config["FanScaled"]):
        """Which fan divides the variance, and by what it is scaled."""

        scale: float = 1.0
        fan: Literal["in", "out", "average"] = "in"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.scale, self.fan = config.scale, config.fan

    def __call__(
        self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
    ) -> jax.Array:
        """Returns values cut off at two standard deviations."""
        fans = {"in": fan_in, "out": fan_out, "average": (fan_in + fan_out) / 2}
        # Cutting the tails off leaves 0.8796 of the standard deviation; make up for it.
        deviation = math.sqrt(self.scale / max(1.0, fans[self.fan])) / 0.87962566103423978
        return deviation * jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)
