"""A feed-forward without a gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from dovetail.config import ConfigOf
from dovetail.layers.feed_forward.feed_forward import AnyFeedForward
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.parallel import constrain, tag


class PlainFeedForward(AnyFeedForward):
    """Feed-forward without a gate: down(activation(up(x)))."""

    class Config(AnyFeedForward.Config):
        """Its nonlinearity and its two linear maps."""

        activation: Callable[..., Any] = jax.nn.gelu
        up: ConfigOf[TokenMap] = Linear.Config()
        down: ConfigOf[TokenMap] = Linear.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.activation = config.activation
        self.up = config.up.build(
            in_features=config.width, in_axis="embed", out_features=config.hidden, out_axis="mlp"
        )
        self.down = config.down.build(
            in_features=config.hidden, in_axis="mlp", out_features=config.width, out_axis="embed"
        )

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        hidden_BSF = self.activation(tag(self.up(x_BSE), "feed_forward_up"))
        hidden_BSF = constrain(hidden_BSF, "batch", "sequence", "mlp")
        return tag(self.down(hidden_BSF), "feed_forward_output")
