"""Qwen3-MoE: Qwen3's form, with experts in the place of most feed-forwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import ConfigError
from dovetail.layers import FeedForward, layers_of
from dovetail.layers.moe import MixtureOfExperts, NormalizedWeights, ScoreWeights
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    common_to_hf,
    each_kind,
    epsilon_of,
    feed_forward,
    gated_to_hf,
    language_model,
    pre_norm_block,
)
from dovetail.models.family import Family, register_family
from dovetail.models.head_norms import normed_attention
from dovetail.models.hub import (
    ATTENTION,
    EXPERTS,
    FEED_FORWARD,
    HEAD_NORMS,
    PRE_NORMS,
    TABLES,
    TINY,
    HubConfig,
    window_of,
)
from dovetail.models.mixtures import mixture, routing_to_hf
from dovetail.models.rotary import rotary_to_hf


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hub = HubConfig(values, num_key_value_heads=4, sliding_window=4096)
    expert = feed_forward(hub).set(hidden=hub["moe_intermediate_size"])
    experts = mixture(hub, expert, hub.either("num_experts", "num_local_experts"))
    normalized = hub.get("norm_topk_prob", False)
    experts.router.weights = NormalizedWeights.Config() if normalized else ScoreWeights.Config()

    window = hub.get("sliding_window") if hub.get("use_sliding_window", False) else None

    def block(is_sparse: bool) -> Any:
        token_map = experts if is_sparse else feed_forward(hub)
        return pre_norm_block(hub, normed_attention(hub, window), token_map)

    kinds = [_is_sparse(hub, index) for index in range(hub["num_hidden_layers"])]
    return language_model(hub, each_kind(kinds, block))


def _is_sparse(hub: HubConfig, index: int) -> bool:
    every = hub.get("decoder_sparse_step", 1)
    return index not in hub.get("mlp_only_layers", []) and (index + 1) % every == 0


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    layers = layers_of(config.decoder.stack)
    maps = [layer.feed_forward for layer in layers]
    sparse = [one for one in maps if isinstance(one, MixtureOfExperts.Config)]
    dense: list[Any] = [one for one in maps if isinstance(one, FeedForward.Config)]
    first = layers[0].attention
    return {
        **common_to_hf(config),
        **gated_to_hf((dense or [sparse[0].expert])[0]),
        **rotary_to_hf(first.positions),
        **_window_to_hf(layers),
        "attention_bias": first.output.bias,
        "rms_norm_eps": epsilon_of(config.decoder.norm),
        "num_experts": sparse[0].num_experts,
        "moe_intermediate_size": sparse[0].expert.hidden,
        "norm_topk_prob": isinstance(sparse[0].router.weights, NormalizedWeights.Config),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, one in enumerate(maps) if isinstance(one, FeedForward.Config)],
        **routing_to_hf(sparse[0]),
    }


def _window_to_hf(layers: list[Any]) -> dict[str, Any]:
    """Unlike the dense models', all layers have the window, or none has."""
    windows = [window_of(layer.attention.mask) for layer in layers]
    if len(set(windows)) > 1:
        raise ConfigError(
            f"{layers[0].attention.locate('mask')}: this format has one window for all layers, got "
            f"{windows}."
        )
    return {"use_sliding_window": windows[0] is not None, "sliding_window": windows[0]}


def tiny() -> dict[str, Any]:
    """A dense layer among sparse ones, an own head width, a window."""
    return TINY | {
        "moe_intermediate_size": 24,
        "num_hidden_layers": 4,
        "head_dim": 12,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
        "rms_norm_eps": 1e-6,
        "use_sliding_window": True,
        "sliding_window": 5,
    }


FAMILY = register_family(
    Family(
        name="qwen3-moe",
        model_type="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*TABLES, *ATTENTION, *HEAD_NORMS, *FEED_FORWARD, *EXPERTS, *PRE_NORMS),
        tiny=tiny,
    )
)
