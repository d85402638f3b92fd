"""Mistral: Llama with sliding-window attention in the first release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import layers_of
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import feed_forward, language_model, pre_norm_block
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.hf import LLAMA, TINY, HFConfig, window_of
from dovetail.models.rotary import llama_to_hf, rotary_attention


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hf = HFConfig(values, num_key_value_heads=8)
    attention = rotary_attention(hf, window=hf.explicit("sliding_window") or None)
    block = pre_norm_block(hf, attention, feed_forward(hf))
    return language_model(hf, [block] * hf["num_hidden_layers"])


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    block = layers_of(config.decoder.stack)[0]
    return llama_to_hf(config) | {"sliding_window": window_of(block.attention.mask)}


def tiny() -> dict[str, Any]:
    """A window shorter than the sequence, grouped heads, an explicit head width."""
    return TINY | {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": 5,
    }


FAMILY = register_family(
    ModelFamily(
        name="mistral",
        model_type="mistral",
        architecture="MistralForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=LLAMA,
        tiny=tiny,
    )
)
