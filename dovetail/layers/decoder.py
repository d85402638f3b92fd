"""Decoder: embedding, stack of layers, final norm."""

from __future__ import annotations

from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.context import TokenContext
from dovetail.layers.embedding import Embedding
from dovetail.layers.interfaces import Layer, Vocabulary
from dovetail.layers.norms import HasFinalNorm
from dovetail.layers.positions.base import InputPositions, NoInputPositions
from dovetail.layers.stack.stack import Stack
from dovetail.layers.stack.stages import in_stages, split_at_longest
from dovetail.parallel import constrain


class Decoder(HasFinalNorm):
    """Embedding, input positions, stack of layers and final norm."""

    class Config(HasFinalNorm.Config["Decoder"]):
        """Vocabulary and width are set by the parent."""

        vocab_size: int = REQUIRED
        embedding: ConfigOf[Vocabulary] = Embedding.Config()
        positions: ConfigOf[InputPositions] = NoInputPositions.Config()
        stack: ConfigOf[Layer] = Stack.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embedding = config.embedding.build(vocab_size=config.vocab_size, width=config.width)
        self.positions = config.positions.build(width=config.width)
        self.stack = in_stages(config.stack).build(width=config.width)

    def __call__(self, tokens_BS: jax.Array, context: TokenContext) -> jax.Array:
        """Maps tokens [B, S] to the final residual stream [B, S, E]."""
        return self.finish(self.run_layers(self.embed(tokens_BS, context), context), context)

    # The forward pass in three: pipeline parallelism splits `run_layers` into stages.

    def embed(self, tokens_BS: jax.Array, context: TokenContext) -> jax.Array:
        """Embeds tokens and runs the layers before the longest stack: [B, S] to [B, S, E]."""
        x_BSE = self.positions(self.embedding(tokens_BS), context)
        x_BSE = constrain(x_BSE, "batch", "residual_sequence", "embed")
        for layer in split_at_longest(self.stack)[0]:
            x_BSE = layer(x_BSE, context)
        return x_BSE

    def run_layers(self, x_BSE: jax.Array, context: TokenContext, first: Any = None) -> jax.Array:
        """Runs the longest stack, or the stage of it that starts at layer `first`."""
        stack = split_at_longest(self.stack)[1]
        return stack(x_BSE, context) if first is None else stack(x_BSE, context, first)

    def finish(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        """Runs the layers after the longest stack, and the final norm."""
        for layer in split_at_longest(self.stack)[2]:
            x_BSE = layer(x_BSE, context)
        return self.norm(x_BSE)
