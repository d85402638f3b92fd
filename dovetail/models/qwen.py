"""Qwen2 and Qwen3: Llama's form, with biases on the way in (2) or normalised heads (3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import layers_of
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    each_kind,
    feed_forward,
    language_model,
    pre_norm_block,
    windows,
    windows_to_hf,
)
from dovetail.models.family import Family, register_family
from dovetail.models.head_norms import normed_attention
from dovetail.models.hub import (
    ATTENTION,
    FEED_FORWARD,
    HEAD_NORMS,
    PRE_NORMS,
    TABLES,
    TINY,
    HubConfig,
)
from dovetail.models.rotary.compose import llama_to_hf, rotary_attention

# What keys mean that are left out, in both.
LEFT_OUT: dict[str, Any] = {
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def qwen2_from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of Qwen2 and 2.5."""
    hub = HubConfig(values, **LEFT_OUT)

    def block(window: int | None) -> Any:
        mixer = rotary_attention(hub, window=window, inward_bias=True)
        return pre_norm_block(hub, mixer, feed_forward(hub))

    return language_model(hub, each_kind(windows(hub), block))


def qwen2_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    return llama_to_hf(config) | windows_to_hf(config)


def qwen3_from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of the dense Qwen3 models."""
    hub = HubConfig(values, **LEFT_OUT, head_dim=128)

    def block(window: int | None) -> Any:
        return pre_norm_block(hub, normed_attention(hub, window), feed_forward(hub))

    return language_model(hub, each_kind(windows(hub), block))


def qwen3_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    block = layers_of(config.decoder.stack)[0]
    bias = {"attention_bias": block.attention.output.bias}
    return llama_to_hf(config) | windows_to_hf(config) | bias


def _tiny() -> dict[str, Any]:
    return TINY | {
        "num_hidden_layers": 3,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    }


def qwen2_tiny() -> dict[str, Any]:
    """Tied, with windows from the second layer on."""
    return _tiny()


def qwen3_tiny() -> dict[str, Any]:
    """An own head width, YaRN, and biases too."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    return _tiny() | {"head_dim": 12, "attention_bias": True, "rope_scaling": yarn}


QWEN2 = register_family(
    Family(
        name="qwen2",
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        from_hf=qwen2_from_hf,
        to_hf=qwen2_to_hf,
        weights=(*TABLES, *ATTENTION, *FEED_FORWARD, *PRE_NORMS),
        tiny=qwen2_tiny,
    )
)
QWEN3 = register_family(
    Family(
        name="qwen3",
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        from_hf=qwen3_from_hf,
        to_hf=qwen3_to_hf,
        weights=(*TABLES, *ATTENTION, *HEAD_NORMS, *FEED_FORWARD, *PRE_NORMS),
        tiny=qwen3_tiny,
    )
)
