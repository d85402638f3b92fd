"""Mixtral: Mistral with a mixture of eight experts as feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import layers_of
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    common_to_hf,
    feed_forward,
    feed_forward_to_hf,
    language_model,
    pre_norm_block,
)
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.hf import (
    ATTENTION,
    BLOCK,
    EMBED_AND_HEAD,
    LAYER,
    PRE_NORMS,
    TINY,
    HFConfig,
    linear,
    window_of,
)
from dovetail.models.moe import routing_to_hf, softmax_mixture
from dovetail.models.rotary import rotary_attention, rotary_from_hf, rotary_to_hf


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hf = HFConfig(values, num_key_value_heads=8)
    hf.require("router_jitter_noise", 0.0)
    experts = softmax_mixture(hf, feed_forward(hf), hf["num_local_experts"])
    positions = rotary_from_hf(hf, base=1_000_000.0)
    window = hf.get("sliding_window") or None
    attention = rotary_attention(hf, window=window, positions=positions)
    block = pre_norm_block(hf, attention, experts)
    return language_model(hf, [block] * hf["num_hidden_layers"])


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    block = layers_of(config.decoder.stack)[0]
    experts = block.feed_forward
    return {
        **common_to_hf(config),
        **feed_forward_to_hf(experts.expert),
        **rotary_to_hf(block.attention.positions),
        "rms_norm_eps": config.decoder.norm.epsilon,
        "sliding_window": window_of(block.attention.mask),
        "num_local_experts": experts.num_experts,
        **routing_to_hf(experts),
    }


def tiny() -> dict[str, Any]:
    """A window, grouped heads, top 2 of five experts."""
    return TINY | {
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.02,
        "sliding_window": 5,
        "rope_theta": 1_000_000.0,
    }


_MOE, _FEED_FORWARD = f"{LAYER}.block_sparse_moe", f"{BLOCK}/feed_forward"
FAMILY = register_family(
    ModelFamily(
        name="mixtral",
        model_type="mixtral",
        architecture="MixtralForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(
            *EMBED_AND_HEAD,
            *ATTENTION,
            *PRE_NORMS,
            *linear(f"{_MOE}.gate", f"{_FEED_FORWARD}/router/projection"),
            *linear(f"{_MOE}.experts.{{expert}}.w1", f"{_FEED_FORWARD}/{{expert}}/gate"),
            *linear(f"{_MOE}.experts.{{expert}}.w3", f"{_FEED_FORWARD}/{{expert}}/up"),
            *linear(f"{_MOE}.experts.{{expert}}.w2", f"{_FEED_FORWARD}/{{expert}}/down"),
        ),
        tiny=tiny,
    )
)
