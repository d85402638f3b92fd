"""Qwen3-MoE: Qwen3 with experts in most layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import ConfigError
from dovetail.layers import FeedForward, layers_of
from dovetail.layers.moe import MixtureOfExperts, NormalizedWeights, ScoreWeights
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    common_to_hf,
    feed_forward,
    feed_forward_to_hf,
    language_model,
    layers_by_kind,
    pre_norm_block,
)
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.hf import EXPERTS, LLAMA, QK_NORMS, TINY, HFConfig, window_of
from dovetail.models.moe import routing_to_hf, softmax_mixture
from dovetail.models.rotary import qk_norm_attention, rotary_to_hf


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hf = HFConfig(values, num_key_value_heads=4, sliding_window=4096)
    expert = feed_forward(hf).set(hidden=hf["moe_intermediate_size"])
    experts = softmax_mixture(hf, expert, hf.first_of("num_experts", "num_local_experts"))
    normalized = hf.get("norm_topk_prob", False)
    experts.router.weights = NormalizedWeights.Config() if normalized else ScoreWeights.Config()

    window = hf.get("sliding_window") if hf.get("use_sliding_window", False) else None

    def block(is_sparse: bool) -> Any:
        dense_or_sparse = experts if is_sparse else feed_forward(hf)
        return pre_norm_block(hf, qk_norm_attention(hf, window), dense_or_sparse)

    kinds = [_is_sparse(hf, index) for index in range(hf["num_hidden_layers"])]
    return language_model(hf, layers_by_kind(kinds, block))


def _is_sparse(hf: HFConfig, index: int) -> bool:
    every = hf.get("decoder_sparse_step", 1)
    return index not in hf.get("mlp_only_layers", []) and (index + 1) % every == 0


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    layers = layers_of(config.decoder.stack)
    feed_forwards = [layer.feed_forward for layer in layers]
    sparse = [one for one in feed_forwards if isinstance(one, MixtureOfExperts.Config)]
    dense: list[Any] = [one for one in feed_forwards if isinstance(one, FeedForward.Config)]
    first = layers[0].attention
    return {
        **common_to_hf(config),
        **feed_forward_to_hf((dense or [sparse[0].expert])[0]),
        **rotary_to_hf(first.positions),
        **_window_to_hf(layers),
        "attention_bias": first.output.bias,
        "rms_norm_eps": config.decoder.norm.epsilon,
        "num_experts": sparse[0].num_experts,
        "moe_intermediate_size": sparse[0].expert.hidden,
        "norm_topk_prob": isinstance(sparse[0].router.weights, NormalizedWeights.Config),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [
            i for i, one in enumerate(feed_forwards) if isinstance(one, FeedForward.Config)
        ],
        **routing_to_hf(sparse[0]),
    }


def _window_to_hf(layers: list[Any]) -> dict[str, Any]:
    """Writes the window: unlike in the dense models, all layers have it or none."""
    windows = [window_of(layer.attention.mask) for layer in layers]
    if len(set(windows)) > 1:
        raise ConfigError(
            f"{layers[0].attention.locate('mask')}: this format has one window for all layers, got "
            f"{windows}."
        )
    return {"use_sliding_window": windows[0] is not None, "sliding_window": windows[0]}


def tiny() -> dict[str, Any]:
    """A dense layer among sparse ones, an explicit head width, a window."""
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
    ModelFamily(
        name="qwen3-moe",
        model_type="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*LLAMA, *QK_NORMS, *EXPERTS),
        tiny=tiny,
    )
)
