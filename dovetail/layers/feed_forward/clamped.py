"""A gated feed-forward with bounded inputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.layers.feed_forward.feed_forward import FeedForward


class ClampedFeedForward(FeedForward):
    """Gated feed-forward with bounded inputs: gate * sigmoid(alpha * gate) * (up + 1) (gpt-oss)."""

    class Config(FeedForward.Config):
        """The bound of gate (from above) and up (from both sides), and the sigmoid's steepness."""

        limit: float = 7.0
        alpha: float = 1.702

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.limit, self.alpha = config.limit, config.alpha

    def _gated(self, gate_BSF: jax.Array, up_BSF: jax.Array) -> jax.Array:
        gate_BSF = jnp.minimum(gate_BSF, self.limit)
        up_BSF = jnp.clip(up_BSF, -self.limit, self.limit)
        return gate_BSF * jax.nn.sigmoid(self.alpha * gate_BSF) * (up_BSF + 1)
