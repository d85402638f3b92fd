"""Llama: pre-norm, rotary positions, gated feed-forward, no biases.

Initialization: linear layers have variance 1 / fan-in, embeddings a standard deviation of 0.02. The
logits of a new model have a variance of about 0.0004 x width, so its loss is about half of that
above log(vocab_size). Output projections are not scaled down by depth. To scale them, set
`weight_init` on `attention.output` and `feed_forward.down`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import REQUIRED
from dovetail.layers import (
    Attention,
    Decoder,
    Embedding,
    FeedForward,
    Stack,
    TransformerBlock,
    layers_of,
)
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import feed_forward, language_model, pre_norm_block
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.hf import LLAMA, TINY, HFConfig
from dovetail.models.rotary import llama_to_hf, rotary_attention


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
        attention=Attention.Config(
            num_heads=num_heads, num_kv_heads=num_kv_heads, positions=RotaryEmbedding.Config()
        ),
        feed_forward=FeedForward.Config(hidden=hidden),
    )
    stack = Stack.Config(num_layers=num_layers, layer=block)
    config = CausalLM.Config(
        vocab_size=vocab_size, width=width, decoder=Decoder.Config(stack=stack)
    )
    return config if tied else config.set(head=Embedding.Config())


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of Llama 2, 3 and 3.1."""
    hf = HFConfig(values)
    bias = hf.get("attention_bias", False)
    attention = rotary_attention(hf, qkv_bias=bias, output_bias=bias)
    block = pre_norm_block(hf, attention, feed_forward(hf, has_bias=hf.get("mlp_bias", False)))
    return language_model(hf, [block] * hf["num_hidden_layers"])


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    block = layers_of(config.decoder.stack)[0]
    written = llama_to_hf(config)
    return written | {
        "attention_bias": block.attention.query.bias,
        "mlp_bias": block.feed_forward.gate.bias,
    }


def tiny() -> dict[str, Any]:
    """Grouped heads, an explicit head width, biases, scaled positions, an untied head."""
    return TINY | {
        "head_dim": 12,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_theta": 500.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    }


FAMILY = register_family(
    ModelFamily(
        name="llama",
        model_type="llama",
        architecture="LlamaForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=LLAMA,
        ignored=("*.rotary_emb.inv_freq",),
        tiny=tiny,
    )
)
