"""Llama-style models: pre-norm, rotary positions, gated feed-forward, no biases.

First values: linear maps have variance 1 / fan-in, tables a standard deviation of 0.02. The scores
of a new model then have a variance of about 0.0004 x width, and its loss lies about half of that
above the log of the vocabulary. Projections into the stream are not scaled down by depth; where
that is wanted, set `weight_init` on `attention.output` and `feed_forward.down`.
"""

from __future__ import annotations

from dovetail.config import REQUIRED
from dovetail.layers import Attention, Decoder, Embedding, FeedForward, Stack, TransformerBlock
from dovetail.models.causal_lm import CausalLM


def llama(
    *,
    width: int,
    num_layers: int,
    num_heads: int,
    hidden: int,
    num_kv_heads: int | None = None,
    tied: bool = False,
    vocab_size: int = REQUIRED,
) -> CausalLM.Config:
    """Returns a Llama-style language model of the given sizes."""
    block = TransformerBlock.Config(
        attention=Attention.Config(num_heads=num_heads, num_kv_heads=num_kv_heads),
        feed_forward=FeedForward.Config(hidden=hidden),
    )
    stack = Stack.Config(num_layers=num_layers, layer=block)
    config = CausalLM.Config(
        vocab_size=vocab_size, width=width, decoder=Decoder.Config(stack=stack)
    )
    return config if tied else config.set(head=Embedding.Config())
