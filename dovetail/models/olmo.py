"""OLMo 2: Llama with norms on the output of each sublayer, and on queries and keys across heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import TransformerBlock, layers_of
from dovetail.layers.linear.linear import NormedLinear
from dovetail.layers.residual import OutputNorm
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import feed_forward, language_model, rms_norm
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.hf import (
    ATTENTION,
    BLOCK,
    EMBED_AND_HEAD,
    FEED_FORWARD,
    LAYER,
    QK_NORMS,
    TINY,
    HFConfig,
    norm,
)
from dovetail.models.rotary import llama_to_hf, rotary_attention


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hf = HFConfig(values)
    bias = hf.get("attention_bias", False)
    attention = rotary_attention(hf, qkv_bias=bias, output_bias=bias)
    normed = NormedLinear.Config(linear=attention.query, norm=rms_norm(hf))
    residual = OutputNorm.Config(norm=rms_norm(hf))
    block = TransformerBlock.Config(
        attention=attention.set(query=normed, key=normed),
        attention_residual=residual,
        feed_forward=feed_forward(hf),
        feed_forward_residual=residual,
    )
    return language_model(hf, [block] * hf["num_hidden_layers"])


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    block = layers_of(config.decoder.stack)[0]
    return llama_to_hf(config) | {"attention_bias": block.attention.output.bias}


def tiny() -> dict[str, Any]:
    """Grouped heads, so that the two norms differ in width."""
    return TINY | {
        "rms_norm_eps": 1e-6,
        "rope_theta": 500_000.0,
    }


BRANCH_NORMS = (
    norm(f"{LAYER}.post_attention_layernorm", f"{BLOCK}/attention_residual/norm"),
    norm(f"{LAYER}.post_feedforward_layernorm", f"{BLOCK}/feed_forward_residual/norm"),
)
FAMILY = register_family(
    ModelFamily(
        name="olmo2",
        model_type="olmo2",
        architecture="Olmo2ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*EMBED_AND_HEAD, *ATTENTION, *QK_NORMS, *FEED_FORWARD, *BRANCH_NORMS),
        tiny=tiny,
    )
)
