"""An encoder-decoder as T5 (https://arxiv.org/abs/1910.10683): cross-attention, relative biases.

The bias of the encoder is bidirectional, that of the decoder is causal, and cross-attention has
none.

The source is an input of the context (`source` and `source_segment_ids`). In decoding it is given
with the prompt alone: each cross-attention caches the encoder's keys and values.

T source sequence, beside the letters of all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf, config_for, modifier, replace, select
from dovetail.kernels.attention import Full
from dovetail.layers import (
    Attention,
    BaseAttention,
    Decoder,
    KeyValues,
    PreNorm,
    Residual,
    SequenceMixer,
    TokenContext,
    TransformerBlock,
    UncachedKV,
    constrain_residual,
)
from dovetail.module import Module
from tests.outside.t5_bias import t5_bias, t5_bias_bidirectional


class SourceKV(Module):
    """Computes the keys and values of the source in every call; decoding replaces it."""

    class Config(Module.Config["SourceKV"]):
        def decoding_cache(self, length: int) -> Any:
            return CachedSourceKV.Config()

    def __call__(self, compute: Callable[[], KeyValues]) -> KeyValues:
        return compute()


class CachedSourceKV(Module):
    """Computes the keys and values of the source in the first call, and caches them."""

    def __call__(self, compute: Callable[[], KeyValues]) -> KeyValues:
        cached = self.read_cache("source")
        kv = compute() if cached is None else cached
        self.write_cache("source", kv)
        return kv


class CrossAttention(Attention):
    """Attention to the output of the encoder."""

    class Config(Attention.Config):
        mask: Any = config_for(Full)
        cache: Any = UncachedKV.Config()
        source: ConfigOf[Any] = SourceKV.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.source = config.source.build()

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        q_BSHD = self.split_heads(self.query(x_BSE), "heads")
        kv = self.source(lambda: self._source(*context.get("encoder")))
        return self.attend(q_BSHD, kv, context, x_BSE)

    def _source(self, source_BTE: jax.Array, context: TokenContext) -> KeyValues:
        k_BTKD = self.split_heads(self.key(source_BTE), "kv_heads")
        v_BTKD = self.split_heads(self.value(source_BTE), "kv_heads")
        kv = self.cache(k_BTKD, v_BTKD, context)
        return changed(kv, aligned=False, complete=True)


class CrossBlock(TransformerBlock):
    """Self-attention, cross-attention, feed-forward."""

    class Config(TransformerBlock.Config):
        cross_attention: ConfigOf[SequenceMixer] = REQUIRED
        cross_residual: ConfigOf[Residual] = PreNorm.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.cross_attention = config.cross_attention.build(width=config.width)
        self.cross_residual = config.cross_residual.build(width=config.width)

    def __call__(self, x: Any, context: TokenContext) -> Any:
        output_BSE = self.attention(self.attention_residual.before(x), context)
        x = self.attention_residual.after(x, output_BSE)
        output_BSE = self.cross_attention(self.cross_residual.before(x), context)
        x = self.cross_residual.after(x, output_BSE)
        output_BSE = self.feed_forward(self.feed_forward_residual.before(x))
        return constrain_residual(self.feed_forward_residual.after(x, output_BSE))


class EncoderDecoder(Decoder):
    """A decoder that first encodes the source, where it is given."""

    class Config(Decoder.Config):
        encoder: ConfigOf[Decoder] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.encoder = config.encoder.build(vocab_size=config.vocab_size, width=config.width)

    def __call__(self, tokens_BS: jax.Array, context: TokenContext) -> jax.Array:
        if "source" in context.inputs:
            context = context.provide("encoder", self._encode(context))
        return super().__call__(tokens_BS, context)

    def _encode(self, context: TokenContext) -> tuple[jax.Array, TokenContext]:
        source_BT, segment_ids_BT = context.get("source"), context.get("source_segment_ids")
        positions_BT = jnp.broadcast_to(jnp.arange(source_BT.shape[1]), source_BT.shape)
        source_context = TokenContext(positions_BT, segment_ids_BT).promise_contiguous()
        return self.encoder(source_BT, source_context), source_context


@modifier("encoder-decoder")
def encoder_decoder(config: Any) -> Any:
    """Gives every decoder an encoder of the same layers, cross-attention to it, and T5's biases."""

    def with_cross_attention(block: Any) -> Any:
        heads = block.attention.num_heads
        cross = CrossBlock.Config(cross_attention=CrossAttention.Config(num_heads=heads))
        return replace(block, TransformerBlock, cross)

    def with_encoder(decoder: Any) -> Any:
        whole = {"mask": config_for(Full), "cache": UncachedKV.Config()}
        encoder = t5_bias_bidirectional(select(decoder, BaseAttention).set(**whole))
        decoder = t5_bias(decoder)
        decoder = decoder.set(stack=replace(decoder.stack, TransformerBlock, with_cross_attention))
        return replace(decoder, Decoder, EncoderDecoder.Config(encoder=encoder))

    return replace(config, Decoder, with_encoder)
