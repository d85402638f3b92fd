"""DeepSeek-V3: latent attention, and routed experts balanced by a bias, beside a shared one.

The published files also hold a layer for predicting two tokens at once; transformers leaves it out,
and so does this family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import FeedForward, Linear, RMSNorm, layers_of
from dovetail.layers.attention.latent import LatentAttention
from dovetail.layers.linear.low_rank import LowRankLinear
from dovetail.layers.moe import (
    GroupedTopExperts,
    LoadBalanceLoss,
    LossFreeBias,
    MixtureOfExperts,
    NormalizedWeights,
    ScoreWeights,
    SigmoidScores,
    TopKRouter,
)
from dovetail.layers.positions.interleaved import InterleavedRotaryEmbedding
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.layers.positions.yarn_scaling import YarnScaling, yarn_magnitude
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    each_kind,
    epsilon_of,
    feed_forward,
    gated_to_hf,
    language_model,
    pre_norm_block,
)
from dovetail.models.family import Family, register_family
from dovetail.models.hub import (
    BLOCK,
    EXPERTS,
    FEED_FORWARD,
    LAYER,
    PRE_NORMS,
    TABLES,
    TINY,
    HubConfig,
    linear,
    norm,
)
from dovetail.models.rotary import rotary_from_hf, rotary_kind, rotary_parameters, rotary_to_hf
from dovetail.module import Weight


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hub = HubConfig(values, norm_topk_prob=True, rope_interleave=True)
    hub.only("attention_bias", False)
    dense = hub["first_k_dense_replace"]

    def block(is_dense: bool) -> Any:
        return pre_norm_block(hub, _mixer(hub), feed_forward(hub) if is_dense else _experts(hub))

    kinds = [index < dense for index in range(hub["num_hidden_layers"])]
    return language_model(hub, each_kind(kinds, block))


def _mixer(hub: HubConfig) -> LatentAttention.Config:
    plain, rotated = hub["qk_nope_head_dim"], hub["qk_rope_head_dim"]
    rank, norm = hub.stated("q_lora_rank"), RMSNorm.Config(epsilon=1e-6)
    return LatentAttention.Config(
        num_heads=hub["num_attention_heads"],
        latent_width=hub["kv_lora_rank"],
        plain_width=plain,
        rotated_width=rotated,
        value_width=hub["v_head_dim"],
        query=Linear.Config() if rank is None else LowRankLinear.Config(rank=rank, norm=norm),
        latent_norm=norm,
        positions=_positions(hub),
        scale=(plain + rotated) ** -0.5 * _sharpening(hub) ** 2,
    )


def _positions(hub: HubConfig) -> RotaryEmbedding.Config:
    found = rotary_from_hf(hub)
    if not hub.get("rope_interleave"):
        return found
    return InterleavedRotaryEmbedding.Config(base=found.base, scaling=found.scaling)


def _sharpening(hub: HubConfig) -> float:
    """Returns what YaRN multiplies queries and keys with; here it is in the scale, on all."""
    scaling = rotary_parameters(hub)
    weight = scaling.get("mscale_all_dim") or 0.0
    if rotary_kind(scaling) == "default":
        return 1.0
    return yarn_magnitude(float(scaling["factor"]), float(weight)) if weight else 1.0


def _experts(hub: HubConfig) -> MixtureOfExperts.Config:
    expert = feed_forward(hub).set(hidden=hub["moe_intermediate_size"])
    count = hub.either("n_routed_experts", "num_local_experts")
    router = TopKRouter.Config(
        scores=SigmoidScores.Config(),
        bias=LossFreeBias.Config(),
        selection=GroupedTopExperts.Config(num_groups=hub["n_group"], top_groups=hub["topk_group"]),
        weights=(
            NormalizedWeights.Config() if hub.get("norm_topk_prob") else ScoreWeights.Config()
        ),
        scaling=float(hub.get("routed_scaling_factor", 2.5)),
    )
    shared = expert.clone(hidden=hub["moe_intermediate_size"] * hub["n_shared_experts"])
    return MixtureOfExperts.Config(
        num_experts=count,
        top_k=hub["num_experts_per_tok"],
        expert=expert,
        router=router,
        shared=shared,
        losses={"balance": LoadBalanceLoss.Config(coefficient=1e-4)},
    )


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    layers = layers_of(config.decoder.stack)
    mixer, dense = layers[0].attention, layers[0].feed_forward
    sparse = layers[-1].feed_forward
    count = sum(isinstance(layer.feed_forward, FeedForward.Config) for layer in layers)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(layers),
        "tie_word_embeddings": not hasattr(config.head, "weight_init"),
        "rms_norm_eps": epsilon_of(config.decoder.norm),
        **gated_to_hf(dense if count else sparse.expert),
        **_mixer_to_hf(mixer),
        "first_k_dense_replace": count,
        "moe_intermediate_size": sparse.expert.hidden,
        "n_routed_experts": sparse.num_experts,
        "n_shared_experts": sparse.shared.hidden // sparse.expert.hidden,
        "num_experts_per_tok": sparse.top_k,
        "n_group": sparse.router.selection.num_groups,
        "topk_group": sparse.router.selection.top_groups,
        "norm_topk_prob": isinstance(sparse.router.weights, NormalizedWeights.Config),
        "routed_scaling_factor": sparse.router.scaling,
    }


def _mixer_to_hf(mixer: LatentAttention.Config) -> dict[str, Any]:
    query: Any = mixer.query
    written = {
        "num_attention_heads": mixer.num_heads,
        "num_key_value_heads": mixer.num_heads,
        "kv_lora_rank": mixer.latent_width,
        "q_lora_rank": query.rank if isinstance(query, LowRankLinear.Config) else None,
        "qk_nope_head_dim": mixer.plain_width,
        "qk_rope_head_dim": mixer.rotated_width,
        "v_head_dim": mixer.value_width,
        "rope_interleave": isinstance(mixer.positions, InterleavedRotaryEmbedding.Config),
        **rotary_to_hf(mixer.positions),
    }
    scaling = getattr(mixer.positions, "scaling", None)
    if isinstance(scaling, YarnScaling.Config):
        written["rope_scaling"] |= _mscale_to_hf(mixer, scaling)
    return written


def _mscale_to_hf(mixer: LatentAttention.Config, scaling: YarnScaling.Config) -> dict[str, Any]:
    """Finds again the two weights that make the magnitude and the scale."""
    width = mixer.plain_width + mixer.rotated_width
    sharpening = ((mixer.scale or width**-0.5) * width**0.5) ** 0.5
    step = yarn_magnitude(scaling.factor) - 1.0
    all_dims = round((sharpening - 1.0) / step, 6)
    magnitude = yarn_magnitude(scaling.factor) if scaling.magnitude is None else scaling.magnitude
    return {
        "mscale": round((magnitude * (1.0 + all_dims * step) - 1.0) / step, 6),
        "mscale_all_dim": all_dims,
    }


def tiny() -> dict[str, Any]:
    """A dense layer, two shared experts, groups, a query of low rank, YaRN with both weights."""
    return TINY | {
        "moe_intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "q_lora_rank": 12,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 12,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "rms_norm_eps": 1e-6,
        "rope_interleave": True,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
        },
    }


_ATTENTION, _OURS = f"{LAYER}.self_attn", f"{BLOCK}/attention"
_SHARED, _FEED_FORWARD = f"{LAYER}.mlp.shared_experts", f"{BLOCK}/feed_forward"
FAMILY = register_family(
    Family(
        name="deepseek-v3",
        model_type="deepseek_v3",
        architecture="DeepseekV3ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(
            *TABLES,
            *PRE_NORMS,
            *FEED_FORWARD,
            *EXPERTS,
            *linear(f"{_ATTENTION}.q_proj", f"{_OURS}/query"),
            *linear(f"{_ATTENTION}.q_a_proj", f"{_OURS}/query/down"),
            norm(f"{_ATTENTION}.q_a_layernorm", f"{_OURS}/query/norm"),
            *linear(f"{_ATTENTION}.q_b_proj", f"{_OURS}/query/up"),
            *linear(f"{_ATTENTION}.kv_a_proj_with_mqa", f"{_OURS}/latent"),
            norm(f"{_ATTENTION}.kv_a_layernorm", f"{_OURS}/latent_norm"),
            *linear(f"{_ATTENTION}.kv_b_proj", f"{_OURS}/expand"),
            *linear(f"{_ATTENTION}.o_proj", f"{_OURS}/output"),
            Weight(
                f"{LAYER}.mlp.gate.e_score_correction_bias", f"{_FEED_FORWARD}/router/bias/bias"
            ),
            *linear(f"{_SHARED}.gate_proj", f"{_FEED_FORWARD}/shared/gate"),
            *linear(f"{_SHARED}.up_proj", f"{_FEED_FORWARD}/shared/up"),
            *linear(f"{_SHARED}.down_proj", f"{_FEED_FORWARD}/shared/down"),
        ),
        # The layer that predicts a second token, which follows the last one.
        ignored=("model.layers.61.*",),
        tiny=tiny,
    )
)
