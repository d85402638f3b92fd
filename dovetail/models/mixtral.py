"""Mixtral: Mistral's form, with eight experts in the place of each feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import layers_of
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    common_to_hf,
    epsilon_of,
    feed_forward,
    gated_to_hf,
    language_model,
    pre_norm_block,
)
from dovetail.models.family import Family, register_family
from dovetail.models.hub import (
    ATTENTION,
    BLOCK,
    LAYER,
    PRE_NORMS,
    TABLES,
    TINY,
    HubConfig,
    linear,
    window_of,
)
from dovetail.models.mixtures import mixture, routing_to_hf
from dovetail.models.rotary import rotary_from_hf, rotary_to_hf
from dovetail.models.rotary.compose import rotary_attention


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hub = HubConfig(values, num_key_value_heads=8)
    hub.only("router_jitter_noise", 0.0)
    experts = mixture(hub, feed_forward(hub), hub["num_local_experts"])
    positions = rotary_from_hf(hub, base=1_000_000.0)
    mixer = rotary_attention(hub, window=hub.get("sliding_window") or None, positions=positions)
    block = pre_norm_block(hub, mixer, experts)
    return language_model(hub, [block] * hub["num_hidden_layers"])


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    block = layers_of(config.decoder.stack)[0]
    experts = block.feed_forward
    return {
        **common_to_hf(config),
        **gated_to_hf(experts.expert),
        **rotary_to_hf(block.attention.positions),
        "rms_norm_eps": epsilon_of(config.decoder.norm),
        "sliding_window": window_of(block.attention.mask),
        "num_local_experts": experts.num_experts,
        **routing_to_hf(experts),
    }


def tiny() -> dict[str, Any]:
    """A window, grouped heads, five experts of which two are visited."""
    return TINY | {
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.02,
        "sliding_window": 5,
        "rope_theta": 1_000_000.0,
    }


_MOE, _FEED_FORWARD = f"{LAYER}.block_sparse_moe", f"{BLOCK}/feed_forward"
FAMILY = register_family(
    Family(
        name="mixtral",
        model_type="mixtral",
        architecture="MixtralForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(
            *TABLES,
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
