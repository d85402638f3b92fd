"""The parallel block: attention and feed-forward side by side."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.attention.attention import Attention
from dovetail.layers.feed_forward.feed_forward import FeedForward
from dovetail.layers.interfaces import Places, Residual, SequenceMixer, TokenMap
from dovetail.layers.residual.pre import PreNorm
from dovetail.module import Module
from dovetail.parallel import constrain


class ParallelBlock(Module):
    """Attention and feed-forward read the same normed stream, and their sum is joined to it.

    As in GPT-J and PaLM (https://arxiv.org/abs/2204.02311): one norm a block instead of two, and
    the two branches do not wait for each other.
    """

    class Config(Module.Config["ParallelBlock"]):
        """The width is set by the parent; the residual joins both branches."""

        width: int = REQUIRED
        attention: ConfigOf[SequenceMixer] = Attention.Config()
        attention_residual: ConfigOf[Residual] = PreNorm.Config()
        feed_forward: ConfigOf[TokenMap] = FeedForward.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = config.width
        self.attention = config.attention.build(width=width)
        self.attention_residual = config.attention_residual.build(width=width)
        self.feed_forward = config.feed_forward.build(width=width)

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        read_BSE = self.attention_residual.before(x_BSE)
        branch_BSE = self.attention(read_BSE, places) + self.feed_forward(read_BSE)
        x_BSE = self.attention_residual.after(x_BSE, branch_BSE)
        return constrain(x_BSE, "batch", "stream", "embed")
