"""Feed-forward layers (MLPs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf, register_function
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.module import Module
from dovetail.parallel import constrain, tag

for _name in ("silu", "gelu", "relu", "tanh", "sigmoid", "softplus", "identity"):
    register_function(f"jax.nn:{_name}")


class BaseFeedForward(Module):
    """The base of feed-forward layers: `replace(config, BaseFeedForward, ...)` finds them all."""

    class Config(Module.Config["BaseFeedForward"]):
        """The width is set by the parent, the hidden width by the model."""

        width: int = REQUIRED
        hidden: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "hidden")


class FeedForward(BaseFeedForward):
    """Gated feed-forward: down(activation(gate(x)) * up(x)) (https://arxiv.org/abs/2002.05202)."""

    class Config(BaseFeedForward.Config):
        activation: Callable[..., Any] = jax.nn.silu
        gate: ConfigOf[TokenMap] = Linear.Config()
        up: ConfigOf[TokenMap] = Linear.Config()
        down: ConfigOf[TokenMap] = Linear.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.activation = config.activation
        up_sizes = {"in_features": config.width, "in_axis": "embed"}
        up_sizes |= {"out_features": config.hidden, "out_axis": "mlp"}
        down_sizes = {"in_features": config.hidden, "in_axis": "mlp"}
        down_sizes |= {"out_features": config.width, "out_axis": "embed"}
        self.gate = config.gate.build(**up_sizes)
        self.up = config.up.build(**up_sizes)
        self.down = config.down.build(**down_sizes)

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        gate_BSF = tag(self.gate(x_BSE), "feed_forward_gate")
        hidden_BSF = self._gated(gate_BSF, tag(self.up(x_BSE), "feed_forward_up"))
        hidden_BSF = constrain(hidden_BSF, "batch", "sequence", "mlp")
        return tag(self.down(hidden_BSF), "feed_forward_output")

    def _gated(self, gate_BSF: jax.Array, up_BSF: jax.Array) -> jax.Array:
        return self.activation(gate_BSF) * up_BSF


@register_function
def exact_gelu(x: jax.Array) -> jax.Array:
    """GELU by the error function; the default of `jax.nn.gelu` is the tanh approximation."""
    return jax.nn.gelu(x, approximate=False)


class ClampedFeedForward(FeedForward):
    """Clamped gated feed-forward: gate * sigmoid(alpha * gate) * (up + 1) (gpt-oss)."""

    class Config(FeedForward.Config):
        """`limit` clamps the gate from above and `up` from both sides."""

        limit: float = 7.0
        alpha: float = 1.702

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.limit, self.alpha = config.limit, config.alpha

    def _gated(self, gate_BSF: jax.Array, up_BSF: jax.Array) -> jax.Array:
        gate_BSF = jnp.minimum(gate_BSF, self.limit)
        up_BSF = jnp.clip(up_BSF, -self.limit, self.limit)
        return gate_BSF * jax.nn.sigmoid(self.alpha * gate_BSF) * (up_BSF + 1)


class PlainFeedForward(BaseFeedForward):
    """Feed-forward without a gate: down(activation(up(x)))."""

    class Config(BaseFeedForward.Config):
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


@register_function
def squared_relu(x: jax.Array) -> jax.Array:
    """max(x, 0) squared (Primer, https://arxiv.org/abs/2109.08668)."""
    return jnp.square(jax.nn.relu(x))
