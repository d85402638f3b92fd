"""Decoder: tokens to vectors, through a stack, to a last norm."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.embedding import Embedding
from dovetail.layers.interfaces import Layer, Places, Vocabulary
from dovetail.layers.norms.last import EndsInNorm
from dovetail.layers.positions.input import InputPositions, NoInputPositions
from dovetail.layers.stack.stack import Stack
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
        self.stack = config.stack.build(width=config.width)

    def __call__(self, tokens_BS: jax.Array, places: Places) -> jax.Array:
        """Maps tokens [B, S] to vectors [B, S, E]."""
        x_BSE = self.positions(self.embedding(tokens_BS), places)
        x_BSE = constrain(x_BSE, "batch", "sequence", "embed")
        return self.norm(self.stack(x_BSE, places))
