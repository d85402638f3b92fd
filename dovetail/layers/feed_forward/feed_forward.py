"""Feed-forward: linear maps with a nonlinearity between them, on each token alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigOf, register_function
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.module import Module
from dovetail.parallel import constrain, tag

for _name in ("silu", "gelu", "relu", "tanh", "sigmoid", "softplus", "identity"):
    register_function(f"jax.nn:{_name}")


class AnyFeedForward(Module):
    """What feed-forwards have in common: `replace(config, AnyFeedForward, ...)` finds them all."""

    class Config(Module.Config["AnyFeedForward"]):
        """The width is set by the parent, the hidden width by the model."""

        width: int = REQUIRED
        hidden: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "hidden")


class FeedForward(AnyFeedForward):
    """Gated feed-forward: down(activation(gate(x)) * up(x)) (https://arxiv.org/abs/2002.05202)."""

    class Config(AnyFeedForward.Config):
        """Its nonlinearity and its three linear maps."""

        activation: Callable[..., Any] = jax.nn.silu
        gate: ConfigOf[TokenMap] = Linear.Config()
        up: ConfigOf[TokenMap] = Linear.Config()
        down: ConfigOf[TokenMap] = Linear.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.activation = config.activation
        inward = {"in_features": config.width, "in_axis": "embed"}
        inward |= {"out_features": config.hidden, "out_axis": "mlp"}
        outward = {"in_features": config.hidden, "in_axis": "mlp"}
        outward |= {"out_features": config.width, "out_axis": "embed"}
        self.gate = config.gate.build(**inward)
        self.up = config.up.build(**inward)
        self.down = config.down.build(**outward)

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
    """GELU by the error function, which `jax.nn.gelu` replaces by a formula unless told."""
    return jax.nn.gelu(x, approximate=False)
