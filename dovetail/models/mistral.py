"""Mistral: Llama's form, with a window of attention in the first release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import layers_of
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import feed_forward, language_model, pre_norm_block
from dovetail.models.family import Family, register_family
from dovetail.models.hub import (
    ATTENTION,
    FEED_FORWARD,
    PRE_NORMS,
    TABLES,
    TINY,
    HubConfig,
    window_of,
)
from dovetail.models.rotary.compose import llama_to_hf, rotary_attention


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hub = HubConfig(values, num_key_value_heads=8)
    mixer = rotary_attention(hub, window=hub.stated("sliding_window") or None)
    block = pre_norm_block(hub, mixer, feed_forward(hub))
    return language_model(hub, [block] * hub["num_hidden_layers"])


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    block = layers_of(config.decoder.stack)[0]
    return llama_to_hf(config) | {"sliding_window": window_of(block.attention.mask)}


def tiny() -> dict[str, Any]:
    """A window shorter than the sequence, grouped heads, an own head width."""
    return TINY | {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": 5,
    }


FAMILY = register_family(
    Family(
        name="mistral",
        model_type="mistral",
        architecture="MistralForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*TABLES, *ATTENTION, *FEED_FORWARD, *PRE_NORMS),
        tiny=tiny,
    )
)
