"""CausalLM: a decoder that predicts the next token. One forward serves training and decoding."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers import Decoder, NextTokenLoss, Places, TokenLoss, Vocabulary
from dovetail.layers.checks import require_positive
from dovetail.module import Batch, Module, Shared


class TokenDecoder(Protocol):
    """Maps tokens to vectors."""

    def __call__(self, tokens_BS: jax.Array, places: Places, /) -> jax.Array:
        """Maps [B, S] to [B, S, E]."""
        ...


class CausalLM(Module):
    """A language model: decoder, head and loss."""

    class Config(Module.Config["CausalLM"]):
        """Vocabulary and width are what decoder and head share; the head is tied unless swapped."""

        vocab_size: int = REQUIRED
        width: int = REQUIRED
        decoder: ConfigOf[TokenDecoder] = Decoder.Config()
        head: ConfigOf[Vocabulary] = Shared.Config(path="decoder/embedding")
        loss: ConfigOf[TokenLoss] = NextTokenLoss.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "vocab_size", "width")
        sizes = {"vocab_size": config.vocab_size, "width": config.width}
        self.vocab_size = config.vocab_size
        self.decoder = config.decoder.clone(**sizes).build()
        self.head = config.head.clone(**sizes).build()
        self.loss = config.loss.build()

    def __call__(self, batch: Batch) -> None:
        """Adds the loss of a batch."""
        x_BSE = self.decoder(batch.tokens, Places(batch.positions, batch.segment_ids))
        self.loss(x_BSE, self.head.weight, batch)

    def logits(self, tokens_BS: jax.Array, places: Places, last_B: jax.Array) -> jax.Array:
        """Returns the scores [B, V] of the token that follows index `last_B` of each row."""
        x_BSE = self.decoder(tokens_BS, places)
        x_B1E = jnp.take_along_axis(x_BSE, last_B[:, None, None], axis=1)
        return self.head.scores(x_B1E)[:, 0]

    def all_logits(self, tokens_BS: jax.Array, places: Places) -> jax.Array:
        """Returns the scores [B, S, V] of every next token; for tests and small models."""
        return self.head.scores(self.decoder(tokens_BS, places))
