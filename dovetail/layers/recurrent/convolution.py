"""Short convolution: each feature mixed with itself in the few tokens before.

B batch, S sequence, C features, T tokens kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places
from dovetail.layers.recurrent.memory import Course, NoState, StateMemory
from dovetail.module import Constant, FanScaled, Initializer, Module, parameter


class ShortConvolution(Module):
    """A causal convolution of each feature by itself, then a nonlinearity.

    It does not reach across segments. Padding adds nothing; within a call it stands behind the
    tokens of a sequence, or before its first one, never among them.
    """

    class Config(Module.Config["ShortConvolution"]):
        """Features and their logical axis are set by the parent."""

        features: int = REQUIRED
        axis: str | None = None
        taps: int = 4
        bias: bool = False
        activation: Callable[..., Any] = jax.nn.silu
        weight_init: ConfigOf[Initializer] = FanScaled.Config()
        memory: ConfigOf[StateMemory] = NoState.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "features", "taps")
        self.taps, self.activation = config.taps, config.activation
        self.weight = parameter(
            (config.taps, config.features), (None, config.axis), config.weight_init, fan_in=(0,)
        )
        self.has_bias = config.bias
        if config.bias:
            self.bias = parameter(
                (config.features,), (config.axis,), Constant.Config(), decays=False
            )
        self.memory = config.memory.build()

    def __call__(self, x_BSC: jax.Array, places: Places) -> jax.Array:
        """Keeps the shape and type."""
        batch, length, features = x_BSC.shape
        kept = self.taps - 1
        course = Course.of(places)
        first = jnp.zeros((batch, kept, features), x_BSC.dtype)
        window_BTC = self.memory.read("window", first).astype(x_BSC.dtype)
        x_BSC = jnp.where(course.real_BS[..., None], x_BSC, 0)
        # Everything that this call can see, and in which of its sequences it stands.
        seen = jnp.concatenate([window_BTC, x_BSC], axis=1)
        run_BS = jnp.cumsum(course.starts_BS, axis=1, dtype=jnp.int32)
        runs = jnp.pad(run_BS, ((0, 0), (kept, 0)))
        self.memory.write("window", self._window(seen, runs, course))
        weight_TC = self.weight.astype(jnp.float32)
        y_BSC = x_BSC * weight_TC[kept]
        for tap in range(kept):
            span = slice(tap, tap + length)
            is_same_BS1 = (runs[:, span] == run_BS)[..., None]
            y_BSC = y_BSC + jnp.where(is_same_BS1, seen[:, span], 0) * weight_TC[tap]
        y_BSC = y_BSC + self.bias.astype(jnp.float32) if self.has_bias else y_BSC
        return self.activation(y_BSC).astype(x_BSC.dtype)

    def _window(self, seen: jax.Array, runs: jax.Array, course: Course) -> jax.Array:
        """Returns the last tokens of the last sequence, zeros in front where there are fewer."""
        kept = self.taps - 1
        index_BS = jnp.where(course.real_BS, jnp.arange(kept, seen.shape[1]), kept - 1)
        last_B1 = jnp.max(index_BS, axis=1, keepdims=True)
        index_BT = last_B1 - kept + 1 + jnp.arange(kept)
        is_same_BT = jnp.take_along_axis(runs, index_BT, axis=1) == runs[:, -1:]
        window_BTC = jnp.take_along_axis(seen, index_BT[..., None], axis=1)
        return jnp.where(is_same_BT[..., None], window_BTC, 0)
