"""Qwen3, dense: Llama with QK-norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import layers_of
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
from dovetail.models.hf import LLAMA, QK_NORMS, TINY, HFConfig
from dovetail.models.rotary import llama_to_hf, qk_norm_attention


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of the dense Qwen3 models."""
    defaults = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
    hf = HFConfig(values, **defaults, head_dim=128)

    def block(window: int | None) -> Any:
        return pre_norm_block(hf, qk_norm_attention(hf, window), feed_forward(hf))

    return language_model(hf, layers_by_kind(windows(hf), block))


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    block = layers_of(config.decoder.stack)[0]
    bias = {"attention_bias": block.attention.output.bias}
    return llama_to_hf(config) | windows_to_hf(config) | bias


def tiny() -> dict[str, Any]:
    """Tied, windows from the second layer on, an explicit head width, YaRN, biases."""
    return TINY | {
        "num_hidden_layers": 3,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
        "head_dim": 12,
        "attention_bias": True,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    }


FAMILY = register_family(
    ModelFamily(
        name="qwen3",
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*LLAMA, *QK_NORMS),
        tiny=tiny,
    )
)
