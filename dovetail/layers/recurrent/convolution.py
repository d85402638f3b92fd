"""Short causal depthwise convolution of recurrent layers.

B batch, S sequence, C features, K taps, T = K - 1 cached tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext
from dovetail.layers.recurrent.state_cache import NoStateCache, SequenceBoundaries, StateCache
from dovetail.module import ConstantInitializer, Initializer, Module, VarianceScaling, parameter


class ShortConvolution(Module):
    """A causal depthwise convolution, then an activation.

    It does not cross segments. Padding, and tokens that are hidden from the layer, are skipped: the
    taps are the preceding visible tokens.
    """

    class Config(Module.Config["ShortConvolution"]):
        """Features and their logical axis are set by the parent."""

        features: int = REQUIRED
        axis: str | None = None
        taps: int = 4
        bias: bool = False
        activation: Callable[..., Any] = jax.nn.silu
        weight_init: ConfigOf[Initializer] = VarianceScaling.Config()
        cache: ConfigOf[StateCache] = NoStateCache.Config()

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
                (config.features,), (config.axis,), ConstantInitializer.Config(), decays=False
            )
        self.cache = config.cache.build()

    def __call__(self, x_BSC: jax.Array, context: TokenContext) -> jax.Array:
        """Keeps shape and dtype."""
        if context.contiguous:
            return self._convolve(x_BSC, context)
        # Padding may be anywhere, so it is moved to the end of each row.
        order_BS = jnp.argsort(context.segment_ids_BS <= 0, axis=1, stable=True)
        positions_BS = jnp.take_along_axis(context.positions_BS, order_BS, axis=1)
        segment_ids_BS = jnp.take_along_axis(context.segment_ids_BS, order_BS, axis=1)
        ordered_BSC = jnp.take_along_axis(x_BSC, order_BS[..., None], axis=1)
        y_BSC = self._convolve(ordered_BSC, TokenContext(positions_BS, segment_ids_BS))
        return jnp.take_along_axis(y_BSC, jnp.argsort(order_BS, axis=1)[..., None], axis=1)

    def _convolve(self, x_BSC: jax.Array, context: TokenContext) -> jax.Array:
        """Convolves tokens without padding between them."""
        batch, length, features = x_BSC.shape
        history = self.taps - 1
        boundaries = SequenceBoundaries.of(context)
        first = jnp.zeros((batch, history, features), x_BSC.dtype)
        window_BTC = self.cache.read("window", first).astype(x_BSC.dtype)
        x_BSC = jnp.where(boundaries.real_BS[..., None], x_BSC, 0)
        # The cached window and this call's tokens, and the index of the sequence of each.
        tokens = jnp.concatenate([window_BTC, x_BSC], axis=1)
        run_BS = jnp.cumsum(boundaries.starts_BS, axis=1, dtype=jnp.int32)
        runs = jnp.pad(run_BS, ((0, 0), (history, 0)))
        self.cache.write("window", self._window(tokens, runs, boundaries))
        weight_KC = self.weight.astype(jnp.float32)
        y_BSC = x_BSC * weight_KC[history]
        for tap in range(history):
            span = slice(tap, tap + length)
            is_same_BS1 = (runs[:, span] == run_BS)[..., None]
            y_BSC = y_BSC + jnp.where(is_same_BS1, tokens[:, span], 0) * weight_KC[tap]
        y_BSC = y_BSC + self.bias.astype(jnp.float32) if self.has_bias else y_BSC
        return self.activation(y_BSC).astype(x_BSC.dtype)

    def _window(
        self, tokens: jax.Array, runs: jax.Array, boundaries: SequenceBoundaries
    ) -> jax.Array:
        """Returns the last tokens of the last sequence, left-padded with zeros."""
        history = self.taps - 1
        index_BS = jnp.where(boundaries.real_BS, jnp.arange(history, tokens.shape[1]), history - 1)
        last_B1 = jnp.max(index_BS, axis=1, keepdims=True)
        index_BT = last_B1 - history + 1 + jnp.arange(history)
        is_same_BT = jnp.take_along_axis(runs, index_BT, axis=1) == runs[:, -1:]
        window_BTC = jnp.take_along_axis(tokens, index_BT[..., None], axis=1)
        return jnp.where(is_same_BT[..., None], window_BTC, 0)
