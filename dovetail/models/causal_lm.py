"""CausalLM: a decoder that predicts the next token. One forward serves training and decoding."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.kernels.attention import ScoreMap
from dovetail.layers import (
    Decoder,
    Logits,
    NextTokenLoss,
    Places,
    TokenLoss,
    Vocabulary,
    in_stages,
)
from dovetail.layers.checks import require_positive
from dovetail.module import Batch, Module, Shared


class TokenDecoder(Protocol):
    """Maps tokens to vectors: at once, or in three parts one after the other."""

    def __call__(self, tokens_BS: jax.Array, places: Places, /) -> jax.Array:
        """Maps [B, S] to [B, S, E]."""
        ...

    def begin(self, tokens_BS: jax.Array, places: Places, /) -> jax.Array:
        """Maps [B, S] to [B, S, E]: what the longest stack reads."""
        ...

    def middle(self, x_BSE: jax.Array, places: Places, first: Any, /) -> jax.Array:
        """Runs the longest stack, or the part of it that begins with layer `first`."""
        ...

    def end(self, x_BSE: jax.Array, places: Places, /) -> jax.Array:
        """Runs what comes after the longest stack."""
        ...


class CausalLM(Module):
    """A language model: decoder, head and loss."""

    class Config(Module.Config["CausalLM"]):
        """Vocabulary and width are what decoder and head share; the head is tied unless swapped.

        A logit map bounds the scores, such as `config_for(SoftCap, cap=30.0)`.
        """

        vocab_size: int = REQUIRED
        width: int = REQUIRED
        decoder: ConfigOf[TokenDecoder] = Decoder.Config()
        head: ConfigOf[Vocabulary] = Shared.Config(path="decoder/embedding")
        logit_map: ConfigOf[ScoreMap] | None = None
        loss: ConfigOf[TokenLoss] = NextTokenLoss.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "vocab_size", "width")
        sizes = {"vocab_size": config.vocab_size, "width": config.width}
        self.vocab_size = config.vocab_size
        self.decoder = config.decoder.build(**sizes)
        self.head = config.head.build(**sizes)
        self.logit_map = None if config.logit_map is None else config.logit_map.build()
        known = {name: size for name, size in sizes.items() if name in config.loss.fields()}
        self.loss = config.loss.build(**known)

    def __call__(self, batch: Batch) -> None:
        """Adds the loss of a batch."""
        self.loss(self.scoring(batch), batch)

    def scoring(self, batch: Batch) -> Logits:
        """Returns the scores of all next tokens, as what they are made of."""
        return self._logits(self.decoder(batch.tokens, _places(batch)))

    def _logits(self, x_BSE: jax.Array) -> Logits:
        return Logits(x_BSE, self.head.weight, self.logit_map)

    # The same in three, for a pipeline.

    def begin(self, batch: Batch) -> jax.Array:
        """Returns what the first stage of a pipeline reads."""
        return self.decoder.begin(batch.tokens, _places(batch))

    def middle(self, x_BSE: jax.Array, batch: Batch, first: Any) -> jax.Array:
        """Runs the part of the longest stack that begins with layer `first`."""
        return self.decoder.middle(x_BSE, _places(batch), first)

    def end(self, x_BSE: jax.Array, batch: Batch) -> None:
        """Adds the loss, given what the last stage leaves."""
        self.loss(self._logits(self.decoder.end(x_BSE, _places(batch))), batch)

    def part(self, parts: int) -> CausalLM:
        """Returns the same model with one of so many parts of its longest stack."""
        config: Any = self.config
        stack = in_stages(config.decoder.stack, parts)
        return type(self)(config.clone(decoder=config.decoder.clone(stack=stack)))

    def logits(self, tokens_BS: jax.Array, places: Places, last_B: jax.Array) -> jax.Array:
        """Returns the scores [B, V] of the token that follows index `last_B` of each row."""
        x_BSE = self.decoder(tokens_BS, places)
        x_B1E = jnp.take_along_axis(x_BSE, last_B[:, None, None], axis=1)
        return self._scores(x_B1E)[:, 0]

    def all_logits(self, tokens_BS: jax.Array, places: Places) -> jax.Array:
        """Returns the scores [B, S, V] of every next token; for tests and small models."""
        return self._scores(self.decoder(tokens_BS, places))

    def _scores(self, x_BSE: jax.Array) -> jax.Array:
        scores_BSV = self.head.scores(x_BSE)
        return scores_BSV if self.logit_map is None else self.logit_map(scores_BSV)


def _places(batch: Batch) -> Places:
    return Places(batch.positions, batch.segment_ids)
