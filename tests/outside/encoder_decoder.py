"""An encoder-decoder as T5 (https://arxiv.org/abs/1910.10683): cross-attention, relative biases.

The bias is learned, per head and bucket of the distance: the first half of the buckets are one
distance each, the others grow logarithmically. That of the encoder is bidirectional, that of the
decoder is causal, and cross-attention has none. T5 has one table for all layers of a stack; here
every layer has its own.

The source is an input of the context (`source` and `source_segment_ids`). In decoding it is given
with the prompt alone: each cross-attention caches the encoder's keys and values.

T source sequence, beside the letters of all layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import (
    REQUIRED,
    ConfigOf,
    apply_modifier,
    config_for,
    modifier,
    replace,
    select,
)
from dovetail.features import feature
from dovetail.kernels.attention import Full, ScoreBias
from dovetail.layers import (
    Attention,
    BaseAttention,
    Decoder,
    KeyValues,
    PreNorm,
    Residual,
    Scores,
    SequenceMixer,
    TokenContext,
    TransformerBlock,
    UncachedKV,
    constrain_residual,
)
from dovetail.layers.attention.scores import PositionalScores
from dovetail.module import Module, Normal, parameter


@functools.cache
def distance_buckets(num_buckets, max_distance):
    """Returns the bucket of each distance from 0 to `max_distance`; all beyond share the last."""
    exact = num_buckets // 2
    distances = np.arange(max_distance + 1)
    growth = np.log(np.maximum(distances, exact) / exact) / np.log(max_distance / exact)
    # The small term keeps powers such as log(4) / log(16) from falling below their integer.
    far = exact + (growth * (num_buckets - exact) + 1e-9).astype(int)
    return np.where(distances < exact, distances, np.minimum(far, num_buckets - 1))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class T5Bias(ScoreBias, static=False):
    """The bias by bucket; `after` is the first bucket of keys after the query, None for none."""

    table: jax.Array  # [buckets, heads]
    max_distance: int = field(metadata={"static": True})
    after: int | None = field(metadata={"static": True})

    def __call__(self, heads, q_positions, kv_positions, /):
        num_buckets = len(self.table) if self.after is None else self.after
        back = q_positions - kv_positions
        distance = jnp.maximum(back, 0) if self.after is None else jnp.abs(back)
        buckets = jnp.asarray(distance_buckets(num_buckets, self.max_distance))
        bucket = buckets[jnp.minimum(distance, self.max_distance)]
        if self.after is not None:
            bucket += jnp.where(back < 0, self.after, 0)
        return self.table[bucket, heads]


class T5Scores(PositionalScores):
    """Scores with T5's bias of a decoder: a key after the query is in the bucket of distance 0."""

    class Config(PositionalScores.Config):
        """From `max_distance` on, all keys share a bucket."""

        num_buckets: int = 32
        max_distance: int = 128

    def __init__(self, config):
        super().__init__(config)
        self.max_distance, self.after = config.max_distance, None
        shape, init = (config.num_buckets, config.num_heads), Normal.Config(standard_deviation=0.1)
        self.table = parameter(shape, (None, "heads"), init, decays=False)

    def changes(self):
        table = self.table.astype(jnp.float32)
        return {"score_bias": T5Bias(table, self.max_distance, self.after)}


class BidirectionalT5Scores(T5Scores):
    """Scores with T5's bias of an encoder: half of the buckets are for keys after the query."""

    class Config(T5Scores.Config):
        pass

    def __init__(self, config):
        super().__init__(config)
        self.after = config.num_buckets // 2


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


@feature(
    "t5-bias",
    kind="positions",
    needs={"dovetail.layers:Scores": "there are no attention scores to bias"},
    trials=({"max_distance": 24},),
)
def t5_bias(config, num_buckets: int = 32, max_distance: int = 128):
    """T5's bias of a decoder, in place of the model's position encoding."""
    return _with_scores(config, T5Scores, num_buckets, max_distance)


@modifier("t5-bias-bidirectional")
def t5_bias_bidirectional(config, num_buckets: int = 32, max_distance: int = 128):
    """T5's bias of an encoder, in place of the model's position encoding."""
    return _with_scores(config, BidirectionalT5Scores, num_buckets, max_distance)


@modifier("encoder-decoder")
def encoder_decoder(config: Any) -> Any:
    """Gives every decoder an encoder of the same layers, cross-attention to it, and T5's biases.

    It is no feature: no experiment's input gives a source, so none could be tried with it.
    """

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


def _with_scores(config, scores, num_buckets, max_distance):
    config = apply_modifier(config, "no-positions")
    new = scores.Config(num_buckets=num_buckets, max_distance=max_distance)
    return replace(config, Scores, new)
