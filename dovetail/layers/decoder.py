"""Decoder: tokens to vectors, through a stack, to a last norm."""

from __future__ import annotations

from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.embedding import Embedding
from dovetail.layers.interfaces import Layer, Places, Vocabulary
from dovetail.layers.norms.last import EndsInNorm
from dovetail.layers.positions.input import InputPositions, NoInputPositions
from dovetail.layers.stack.stack import Stack
from dovetail.layers.stack.stages import around, in_stages
from dovetail.parallel import constrain


class Decoder(EndsInNorm):
    """Embedding, positions, stack and norm."""

    class Config(EndsInNorm.Config["Decoder"]):
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

    def __call__(self, tokens_BS: jax.Array, places: Places) -> jax.Array:
        """Maps tokens [B, S] to vectors [B, S, E]."""
        return self.end(self.middle(self.begin(tokens_BS, places), places), places)

    # The same in three: a pipeline gives each of its devices a part of the middle.

    def begin(self, tokens_BS: jax.Array, places: Places) -> jax.Array:
        """Maps tokens [B, S] to what the longest stack reads."""
        x_BSE = self.positions(self.embedding(tokens_BS), places)
        x_BSE = constrain(x_BSE, "batch", "stream", "embed")
        for layer in around(self.stack)[0]:
            x_BSE = layer(x_BSE, places)
        return x_BSE

    def middle(self, x_BSE: jax.Array, places: Places, first: Any = None) -> jax.Array:
        """Runs the longest stack, or the part of it that begins with layer `first`."""
        stack = around(self.stack)[1]
        return stack(x_BSE, places) if first is None else stack(x_BSE, places, first)

    def end(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Runs what comes after the longest stack."""
        for layer in around(self.stack)[2]:
            x_BSE = layer(x_BSE, places)
        return self.norm(x_BSE)
