"""Qwen3, dense: Llama's form, with normalised heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    each_kind,
    feed_forward,
    language_model,
    llama_to_hf,
    normed_attention,
    pre_norm_block,
    windows,
    windows_to_hf,
)
from dovetail.models.family import Family, register_family
from dovetail.models.hub import (
    ATTENTION,
    FEED_FORWARD,
    HEAD_NORMS,
    PRE_NORMS,
    TABLES,
    HubConfig,
    layers_of,
)
from dovetail.models.qwen_shared import LEFT_OUT, shared_tiny


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of the dense Qwen3 models."""
    hub = HubConfig(values, **LEFT_OUT, head_dim=128)

    def block(window: int | None) -> Any:
        return pre_norm_block(hub, normed_attention(hub, window), feed_forward(hub))

    return language_model(hub, each_kind(windows(hub), block))


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    block = layers_of(config.decoder.stack)[0]
    bias = {"attention_bias": block.attention.output.bias}
    return llama_to_hf(config) | windows_to_hf(config) | bias


def tiny() -> dict[str, Any]:
    """An own head width, YaRN, and biases too."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    return shared_tiny() | {"head_dim": 12, "attention_bias": True, "rope_scaling": yarn}


FAMILY = register_family(
    Family(
        name="qwen3",
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*TABLES, *ATTENTION, *HEAD_NORMS, *FEED_FORWARD, *PRE_NORMS),
        tiny=tiny,
    )
)
