"""gpt-oss: attention with sinks, every other layer local, and bounded experts with biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import ConfigError
from dovetail.layers import Linear, layers_of
from dovetail.layers.attention.sinks import LearnedSinks
from dovetail.layers.feed_forward.clamped import ClampedFeedForward
from dovetail.layers.moe import SoftmaxWeights, TopKRouter
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    common_to_hf,
    each_kind,
    epsilon_of,
    language_model,
    pre_norm_block,
)
from dovetail.models.family import Family, register_family
from dovetail.models.hub import (
    ATTENTION,
    BLOCK,
    GLOBAL,
    LAYER,
    LOCAL,
    PRE_NORMS,
    TABLES,
    TINY,
    HubConfig,
    linear,
    window_of,
)
from dovetail.models.mixtures import mixture, routing_to_hf
from dovetail.models.rotary import rotary_from_hf, rotary_parameters, rotary_to_hf
from dovetail.models.rotary.compose import rotary_attention
from dovetail.module import Interleave, Weight


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hub = HubConfig(values, num_key_value_heads=8, head_dim=64)
    if not rotary_parameters(hub):
        # Older releases of transformers read null as no scaling, newer ones as that of gpt-oss.
        raise ConfigError(
            "config.json: 'rope_parameters' or 'rope_scaling' is left out or null, whose meaning "
            'differs among releases; write it, {"rope_type": "default"} where there is no scaling.'
        )
    count = hub["num_hidden_layers"]
    default = [LOCAL if index % 2 == 0 else GLOBAL for index in range(count)]

    def block(kind: str) -> Any:
        return pre_norm_block(hub, _mixer(hub, kind), _experts(hub))

    return language_model(hub, each_kind(hub.layer_kinds(default), block))


def _mixer(hub: HubConfig, kind: str) -> Any:
    bias = hub.get("attention_bias", True)
    return rotary_attention(
        hub,
        window=hub["sliding_window"] if kind == LOCAL else None,
        inward_bias=bias,
        output_bias=bias,
        scores=LearnedSinks.Config(),
        positions=rotary_from_hf(hub, base=150_000.0),
    )


def _experts(hub: HubConfig) -> Any:
    biased = Linear.Config(bias=True)
    expert = ClampedFeedForward.Config(
        hidden=hub["intermediate_size"],
        limit=hub.get("swiglu_limit", 7.0),
        alpha=hub.get("swiglu_alpha", 1.702),
        gate=biased,
        up=biased,
        down=biased,
    )
    router = TopKRouter.Config(
        projection=Linear.Config(bias=True, dtype="float32"), weights=SoftmaxWeights.Config()
    )
    return mixture(hub, expert, hub["num_local_experts"]).set(router=router)


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
        "rms_norm_eps": epsilon_of(config.decoder.norm),
        "intermediate_size": experts.expert.hidden,
        "num_local_experts": experts.num_experts,
        "swiglu_limit": experts.expert.limit,
        "swiglu_alpha": experts.expert.alpha,
        "sliding_window": next((window for window in windows if window), None),
        "layer_types": [LOCAL if window else GLOBAL for window in windows],
    }


def tiny() -> dict[str, Any]:
    """Tight bounds, so that they matter; YaRN as in the published models."""
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


_THEIRS, _OURS = f"{LAYER}.mlp.experts", f"{BLOCK}/feed_forward/{{expert}}"
FAMILY = register_family(
    Family(
        name="gpt-oss",
        model_type="gpt_oss",
        architecture="GptOssForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(
            *TABLES,
            *ATTENTION,
            *PRE_NORMS,
            Weight(f"{LAYER}.self_attn.sinks", f"{BLOCK}/attention/scores/sinks"),
            *linear(f"{LAYER}.mlp.router", f"{BLOCK}/feed_forward/router/projection"),
            # All experts in one tensor, kept as (in, out); gate and up take turns.
            Weight(
                f"{_THEIRS}.gate_up_proj",
                (f"{_OURS}/gate/weight", f"{_OURS}/up/weight"),
                (Interleave(-1),),
            ),
            Weight(
                f"{_THEIRS}.gate_up_proj_bias",
                (f"{_OURS}/gate/bias", f"{_OURS}/up/bias"),
                (Interleave(-1),),
            ),
            Weight(f"{_THEIRS}.down_proj", f"{_OURS}/down/weight"),
            Weight(f"{_THEIRS}.down_proj_bias", f"{_OURS}/down/bias"),
        ),
        tiny=tiny,
    )
)
