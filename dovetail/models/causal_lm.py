"""CausalLM: a decoder that predicts the next token. One forward serves training and decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.kernels.attention import ScoreMap
from dovetail.layers import (
    Decoder,
    Logits,
    NextTokenLoss,
    TokenContext,
    TokenLoss,
    Vocabulary,
    in_stages,
)
from dovetail.layers.checks import require_positive
from dovetail.module import Module, Shared, TokenBatch


class TokenDecoder(Protocol):
    """Maps tokens to hidden states: in one call, or in three for a pipeline.

    `x` is what goes from layer to layer: [B, S, E], or a pytree.
    """

    def __call__(self, tokens_BS: jax.Array, context: TokenContext, /) -> jax.Array:
        """Maps [B, S] to [B, S, E]."""
        ...

    def embed(self, tokens_BS: jax.Array, context: TokenContext, /) -> Any:
        """Maps [B, S] to the input of the longest stack."""
        ...

    def run_layers(self, x: Any, context: TokenContext, first: Any, /) -> Any:
        """Runs the longest stack, or the stage of it that starts at layer `first`."""
        ...

    def finish(self, x: Any, context: TokenContext, /) -> jax.Array:
        """Runs the layers after the longest stack, and the final norm: to [B, S, E]."""
        ...


class CausalLM(Module):
    """A language model: decoder, head and loss.

    It provides the token ids to its layers as the input `tokens` of their context, and in training
    the batch's extras by their names.
    """

    class Config(Module.Config["CausalLM"]):
        """Decoder and head share the vocabulary and the width; embeddings are tied by default.

        `logit_map` transforms the logits, for example `config_for(SoftCap, cap=30.0)`.
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

    def __call__(self, batch: TokenBatch) -> None:
        """Adds the loss of a batch."""
        self.loss(self.factored_logits(batch), batch)

    def factored_logits(self, batch: TokenBatch) -> Logits:
        """Returns the logits in factored form: hidden states, head weight and logit map."""
        return self._factored(self.decoder(batch.tokens, _context(batch)))

    def _factored(self, x_BSE: jax.Array) -> Logits:
        return Logits(x_BSE, self.head.weight, self.logit_map)

    # The same forward in three methods, for a pipeline.

    def embed(self, batch: TokenBatch) -> Any:
        """Returns the input of the first pipeline stage."""
        return self.decoder.embed(batch.tokens, _context(batch))

    def run_layers(self, x: Any, batch: TokenBatch, first: Any) -> Any:
        """Runs the stage of the longest stack that starts at layer `first`."""
        return self.decoder.run_layers(x, _context(batch), first)

    def head_loss(self, x: Any, batch: TokenBatch) -> None:
        """Adds the loss, given the output of the last stage."""
        self.loss(self._factored(self.decoder.finish(x, _context(batch))), batch)

    def stage_model(self, num_stages: int) -> CausalLM:
        """Returns this model with one of `num_stages` stages of its longest stack."""
        config: Any = self.config
        stack = in_stages(config.decoder.stack, num_stages)
        return type(self)(config.clone(decoder=config.decoder.clone(stack=stack)))

    def predict(self, tokens_BS: jax.Array, inputs: Mapping[str, Any] | None = None) -> jax.Array:
        """Returns the logits [B, S, V] of rows that are one document each.

        Args:
            tokens_BS: the token ids.
            inputs: named inputs of the layers' context, if they ask for any.
        """
        positions_BS = jnp.broadcast_to(jnp.arange(tokens_BS.shape[1]), tokens_BS.shape)
        context = TokenContext(positions_BS, jnp.ones_like(tokens_BS)).promise_contiguous()
        return self.all_logits(tokens_BS, _provide_all(context, inputs or {}))

    def logits(self, tokens_BS: jax.Array, context: TokenContext, last_B: jax.Array) -> jax.Array:
        """Returns the logits [B, V] of the token after index `last_B` of each row."""
        x_BSE = self.decoder(tokens_BS, context.provide("tokens", tokens_BS))
        x_B1E = jnp.take_along_axis(x_BSE, last_B[:, None, None], axis=1)
        return self._logits(x_B1E)[:, 0]

    def all_logits(self, tokens_BS: jax.Array, context: TokenContext) -> jax.Array:
        """Returns the logits [B, S, V] of all positions; for tests and small models."""
        return self._logits(self.decoder(tokens_BS, context.provide("tokens", tokens_BS)))

    def _logits(self, x_BSE: jax.Array) -> jax.Array:
        logits_BSV = self.head.logits(x_BSE)
        return logits_BSV if self.logit_map is None else self.logit_map(logits_BSV)


def _context(batch: TokenBatch) -> TokenContext:
    return _provide_all(TokenContext.of(batch).provide("tokens", batch.tokens), batch.extras)


def _provide_all(context: TokenContext, inputs: Mapping[str, Any]) -> TokenContext:
    for name, value in inputs.items():
        context = context.provide(name, value)
    return context
