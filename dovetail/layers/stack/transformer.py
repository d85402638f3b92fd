"""The transformer block: a sequence mixer and a token map, each joined to the stream."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.attention.attention import Attention
from dovetail.layers.feed_forward.feed_forward import FeedForward
from dovetail.layers.interfaces import Places, Residual, SequenceMixer, TokenMap
from dovetail.layers.residual.pre import PreNorm
from dovetail.module import Module
from dovetail.parallel import constrain


class TransformerBlock(Module):
    """Attention, then feed-forward."""

    class Config(Module.Config["TransformerBlock"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        attention: ConfigOf[SequenceMixer] = Attention.Config()
        attention_residual: ConfigOf[Residual] = PreNorm.Config()
        feed_forward: ConfigOf[TokenMap] = FeedForward.Config()
        feed_forward_residual: ConfigOf[Residual] = PreNorm.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = config.width
        self.attention = config.attention.build(width=width)
        self.attention_residual = config.attention_residual.build(width=width)
        self.feed_forward = config.feed_forward.build(width=width)
        self.feed_forward_residual = config.feed_forward_residual.build(width=width)

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        mixed = self.attention(self.attention_residual.before(x_BSE), places)
        x_BSE = self.attention_residual.after(x_BSE, mixed)
        mapped = self.feed_forward(self.feed_forward_residual.before(x_BSE))
        x_BSE = self.feed_forward_residual.after(x_BSE, mapped)
        return constrain(x_BSE, "batch", "stream", "embed")
