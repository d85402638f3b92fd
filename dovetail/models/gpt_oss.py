"""gpt-oss: attention sinks, sliding windows in every other layer, clamped experts with biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import ConfigError
from dovetail.layers import Linear, layers_of
from dovetail.layers.attention.scores import LearnedSinks
from dovetail.layers.feed_forward import ClampedFeedForward
from dovetail.layers.moe import SoftmaxWeights, TopKRouter
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    common_to_hf,
    language_model,
    layers_by_kind,
    pre_norm_block,
)
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.hf import (
    ATTENTION,
    BLOCK,
    EMBED_AND_HEAD,
    GLOBAL,
    LAYER,
    LOCAL,
    PRE_NORMS,
    TINY,
    HFConfig,
    linear,
    window_of,
)
from dovetail.models.moe import routing_to_hf, softmax_mixture
from dovetail.models.rotary import rotary_attention, rotary_from_hf, rotary_parameters, rotary_to_hf
from dovetail.module import Interleave, WeightRule


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hf = HFConfig(values, num_key_value_heads=8, head_dim=64)
    if not rotary_parameters(hf):
        # Older releases of transformers read null as no scaling, newer ones as gpt-oss's own.
        raise ConfigError(
            "config.json: 'rope_parameters' or 'rope_scaling' is left out or null, whose meaning "
            'differs between releases; write {"rope_type": "default"} for no scaling.'
        )
    count = hf["num_hidden_layers"]
    default = [LOCAL if index % 2 == 0 else GLOBAL for index in range(count)]

    def block(kind: str) -> Any:
        return pre_norm_block(hf, _attention(hf, kind), _experts(hf))

    return language_model(hf, layers_by_kind(hf.layer_kinds(default), block))


def _attention(hf: HFConfig, kind: str) -> Any:
    bias = hf.get("attention_bias", True)
    return rotary_attention(
        hf,
        window=hf["sliding_window"] if kind == LOCAL else None,
        qkv_bias=bias,
        output_bias=bias,
        scores=LearnedSinks.Config(),
        positions=rotary_from_hf(hf, base=150_000.0),
    )


def _experts(hf: HFConfig) -> Any:
    biased = Linear.Config(bias=True)
    expert = ClampedFeedForward.Config(
        hidden=hf["intermediate_size"],
        limit=hf.get("swiglu_limit", 7.0),
        alpha=hf.get("swiglu_alpha", 1.702),
        gate=biased,
        up=biased,
        down=biased,
    )
    router = TopKRouter.Config(
        projection=Linear.Config(bias=True, dtype="float32"), weights=SoftmaxWeights.Config()
    )
    return softmax_mixture(hf, expert, hf["num_local_experts"]).set(router=router)


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    layers = layers_of(config.decoder.stack)
    windows = [window_of(layer.attention.mask) for layer in layers]
    experts = layers[0].feed_forward
    rotary = rotary_to_hf(layers[0].attention.positions)
    return {
        **common_to_hf(config),
        **rotary,
        "rope_scaling": rotary["rope_scaling"] or {"rope_type": "default"},
        **routing_to_hf(experts),
        "attention_bias": layers[0].attention.output.bias,
        "rms_norm_eps": config.decoder.norm.epsilon,
        "intermediate_size": experts.expert.hidden,
        "num_local_experts": experts.num_experts,
        "swiglu_limit": experts.expert.limit,
        "swiglu_alpha": experts.expert.alpha,
        "sliding_window": next((window for window in windows if window), None),
        "layer_types": [LOCAL if window else GLOBAL for window in windows],
    }


def tiny() -> dict[str, Any]:
    """A tight clamp, so that it has an effect; YaRN as in the published models."""
    return TINY | {
        "intermediate_size": 24,
        "num_hidden_layers": 4,
        "head_dim": 16,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": 5,
        "swiglu_limit": 0.7,
        "rope_theta": 150_000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
    }


_HF_EXPERTS, _EXPERT = f"{LAYER}.mlp.experts", f"{BLOCK}/feed_forward/{{expert}}"
FAMILY = register_family(
    ModelFamily(
        name="gpt-oss",
        model_type="gpt_oss",
        architecture="GptOssForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(
            *EMBED_AND_HEAD,
            *ATTENTION,
            *PRE_NORMS,
            WeightRule(f"{LAYER}.self_attn.sinks", f"{BLOCK}/attention/scores/sinks"),
            *linear(f"{LAYER}.mlp.router", f"{BLOCK}/feed_forward/router/projection"),
            # All experts in one tensor, stored as (in, out); gate and up are interleaved.
            WeightRule(
                f"{_HF_EXPERTS}.gate_up_proj",
                (f"{_EXPERT}/gate/weight", f"{_EXPERT}/up/weight"),
                (Interleave(-1),),
            ),
            WeightRule(
                f"{_HF_EXPERTS}.gate_up_proj_bias",
                (f"{_EXPERT}/gate/bias", f"{_EXPERT}/up/bias"),
                (Interleave(-1),),
            ),
            WeightRule(f"{_HF_EXPERTS}.down_proj", f"{_EXPERT}/down/weight"),
            WeightRule(f"{_HF_EXPERTS}.down_proj_bias", f"{_EXPERT}/down/bias"),
        ),
        tiny=tiny,
    )
)
