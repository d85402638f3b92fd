"""OLMo 2: Llama's form, with norms on what branches return, and on whole queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import TransformerBlock, layers_of
from dovetail.layers.linear.normed import NormedLinear
from dovetail.layers.residual.branch import BranchNorm
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import feed_forward, language_model, rms_norm
from dovetail.models.family import Family, register_family
from dovetail.models.hub import (
    ATTENTION,
    BLOCK,
    FEED_FORWARD,
    HEAD_NORMS,
    LAYER,
    TABLES,
    TINY,
    HubConfig,
    norm,
)
from dovetail.models.rotary.compose import llama_to_hf, rotary_attention


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hub = HubConfig(values)
    bias = hub.get("attention_bias", False)
    mixer = rotary_attention(hub, inward_bias=bias, output_bias=bias)
    normed = NormedLinear.Config(linear=mixer.query, norm=rms_norm(hub))
    joint = BranchNorm.Config(norm=rms_norm(hub))
    block = TransformerBlock.Config(
        attention=mixer.set(query=normed, key=normed),
        attention_residual=joint,
        feed_forward=feed_forward(hub),
        feed_forward_residual=joint,
    )
    return language_model(hub, [block] * hub["num_hidden_layers"])


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
    Family(
        name="olmo2",
        model_type="olmo2",
        architecture="Olmo2ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*TABLES, *ATTENTION, *HEAD_NORMS, *FEED_FORWARD, *BRANCH_NORMS),
        tiny=tiny,
    )
)
