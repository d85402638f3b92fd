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
from dovetail.layers.stack.stack import Identity, Stack
from dovetail.layers.stack.stages import in_stages, split_at_longest
from dovetail.parallel import constrain


class Decoder(HasFinalNorm):
    """Embedding, input positions, stack of layers and final norm.

    `stack_input` maps the embeddings [B, S, E] to what goes from layer to layer, and `stack_output`
    maps it back to [B, S, E]. So several residual streams, or vectors that replace the embeddings
    of some tokens, need no other decoder.
    """

    class Config(HasFinalNorm.Config["Decoder"]):
        """Vocabulary and width are set by the parent."""

        vocab_size: int = REQUIRED
        embedding: ConfigOf[Vocabulary] = Embedding.Config()
        positions: ConfigOf[InputPositions] = NoInputPositions.Config()
        stack_input: ConfigOf[Layer] = Identity.Config()
        stack: ConfigOf[Layer] = Stack.Config()
        stack_output: ConfigOf[Layer] = Identity.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embedding = config.embedding.build(vocab_size=config.vocab_size, width=config.width)
        self.positions = config.positions.build(width=config.width)
        self.stack_input = config.stack_input.build(width=config.width)
        self.stack = in_stages(config.stack).build(width=config.width)
        self.stack_output = config.stack_output.build(width=config.width)

    def __call__(self, tokens_BS: jax.Array, context: TokenContext) -> jax.Array:
        """Maps tokens [B, S] to the final residual stream [B, S, E]."""
        return self.finish(self.run_layers(self.embed(tokens_BS, context), context), context)

    # The forward pass in three: pipeline parallelism splits `run_layers` into stages.

    def embed(self, tokens_BS: jax.Array, context: TokenContext) -> Any:
        """Embeds tokens [B, S] and runs the layers before the longest stack."""
        x_BSE = self.positions(self.embedding(tokens_BS), context)
        x_BSE = constrain(x_BSE, "batch", "residual_sequence", "embed")
        x = self.stack_input(x_BSE, context)
        for layer in split_at_longest(self.stack)[0]:
            x = layer(x, context)
        return x

    def run_layers(self, x: Any, context: TokenContext, first: Any = None) -> Any:
        """Runs the longest stack, or the stage of it that starts at layer `first`."""
        stack = split_at_longest(self.stack)[1]
        return stack(x, context) if first is None else stack(x, context, first)

    def finish(self, x: Any, context: TokenContext) -> jax.Array:
        """Runs the layers after the longest stack, and the final norm: to [B, S, E]."""
        for layer in split_at_longest(self.stack)[2]:
            x = layer(x, context)
        return self.norm(self.stack_output(x, context))
