"""Qwen2 and 2.5: Llama with biases on query, key and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    feed_forward,
    language_model,
    layers_by_kind,
    pre_norm_block,
    windows,
    windows_to_hf,
)
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.hf import LLAMA, TINY, HFConfig
from dovetail.models.rotary import llama_to_hf, rotary_attention


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of Qwen2 and 2.5."""
    hf = HFConfig(values, num_key_value_heads=32, sliding_window=4096, max_window_layers=28)

    def block(window: int | None) -> Any:
        attention = rotary_attention(hf, window=window, qkv_bias=True)
        return pre_norm_block(hf, attention, feed_forward(hf))

    return language_model(hf, layers_by_kind(windows(hf), block))


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    return llama_to_hf(config) | windows_to_hf(config)


def tiny() -> dict[str, Any]:
    """Tied, with windows from the second layer on."""
    return TINY | {
        "num_hidden_layers": 3,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    }


FAMILY = register_family(
    ModelFamily(
        name="qwen2",
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=LLAMA,
        tiny=tiny,
    )
)
