"""DeepSeek-V3: multi-head latent attention (MLA), experts balanced by a bias, shared experts.

The published checkpoints also have a multi-token prediction layer. transformers ignores it, and so
does this family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import FeedForward, Linear, RMSNorm, layers_of
from dovetail.layers.attention.latent import LatentAttention
from dovetail.layers.linear.linear import LowRankLinear
from dovetail.layers.moe import (
    GroupLimitedSelection,
    LoadBalanceLoss,
    LossFreeBias,
    MixtureOfExperts,
    NormalizedWeights,
    ScoreWeights,
    SigmoidScores,
    TopKRouter,
)
from dovetail.layers.positions.rope_scaling import YarnScaling, yarn_magnitude
from dovetail.layers.positions.rotary import InterleavedRotaryEmbedding, RotaryEmbedding
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    feed_forward,
    feed_forward_to_hf,
    language_model,
    layers_by_kind,
    pre_norm_block,
)
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.hf import (
    BLOCK,
    EMBED_AND_HEAD,
    EXPERTS,
    FEED_FORWARD,
    LAYER,
    PRE_NORMS,
    TINY,
    HFConfig,
    linear,
    norm,
)
from dovetail.models.rotary import rope_type, rotary_from_hf, rotary_parameters, rotary_to_hf
from dovetail.module import WeightRule


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hf = HFConfig(values, norm_topk_prob=True, rope_interleave=True)
    hf.require("attention_bias", False)
    dense = hf["first_k_dense_replace"]

    def block(is_dense: bool) -> Any:
        return pre_norm_block(hf, _attention(hf), feed_forward(hf) if is_dense else _experts(hf))

    kinds = [index < dense for index in range(hf["num_hidden_layers"])]
    return language_model(hf, layers_by_kind(kinds, block))


def _attention(hf: HFConfig) -> LatentAttention.Config:
    plain, rotated = hf["qk_nope_head_dim"], hf["qk_rope_head_dim"]
    rank, norm = hf.explicit("q_lora_rank"), RMSNorm.Config(epsilon=1e-6)
    return LatentAttention.Config(
        num_heads=hf["num_attention_heads"],
        latent_width=hf["kv_lora_rank"],
        plain_width=plain,
        rotated_width=rotated,
        value_width=hf["v_head_dim"],
        query=Linear.Config() if rank is None else LowRankLinear.Config(rank=rank, norm=norm),
        latent_norm=norm,
        positions=_positions(hf),
        scale=(plain + rotated) ** -0.5 * _yarn_factor(hf) ** 2,
    )


def _positions(hf: HFConfig) -> RotaryEmbedding.Config:
    found = rotary_from_hf(hf)
    if not hf.get("rope_interleave"):
        return found
    return InterleavedRotaryEmbedding.Config(base=found.base, scaling=found.scaling)


def _yarn_factor(hf: HFConfig) -> float:
    """Returns YaRN's factor of queries and keys; DeepSeek folds it into the softmax scale."""
    scaling = rotary_parameters(hf)
    weight = scaling.get("mscale_all_dim") or 0.0
    if rope_type(scaling) == "default":
        return 1.0
    return yarn_magnitude(float(scaling["factor"]), float(weight)) if weight else 1.0


def _experts(hf: HFConfig) -> MixtureOfExperts.Config:
    expert = feed_forward(hf).set(hidden=hf["moe_intermediate_size"])
    count = hf.first_of("n_routed_experts", "num_local_experts")
    router = TopKRouter.Config(
        scores=SigmoidScores.Config(),
        bias=LossFreeBias.Config(),
        selection=GroupLimitedSelection.Config(
            num_groups=hf["n_group"], top_groups=hf["topk_group"]
        ),
        weights=(NormalizedWeights.Config() if hf.get("norm_topk_prob") else ScoreWeights.Config()),
        scaling=float(hf.get("routed_scaling_factor", 2.5)),
    )
    shared = expert.clone(hidden=hf["moe_intermediate_size"] * hf["n_shared_experts"])
    return MixtureOfExperts.Config(
        num_experts=count,
        top_k=hf["num_experts_per_tok"],
        expert=expert,
        router=router,
        shared=shared,
        losses={"balance": LoadBalanceLoss.Config(coefficient=1e-4)},
    )


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    layers = layers_of(config.decoder.stack)
    attention, dense = layers[0].attention, layers[0].feed_forward
    sparse = layers[-1].feed_forward
    count = sum(isinstance(layer.feed_forward, FeedForward.Config) for layer in layers)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(layers),
        "tie_word_embeddings": not hasattr(config.head, "weight_init"),
        "rms_norm_eps": config.decoder.norm.epsilon,
        **feed_forward_to_hf(dense if count else sparse.expert),
        **_attention_to_hf(attention),
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


def _attention_to_hf(attention: Any) -> dict[str, Any]:
    query: Any = attention.query
    written = {
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_heads,
        "kv_lora_rank": attention.latent_width,
        "q_lora_rank": query.rank if isinstance(query, LowRankLinear.Config) else None,
        "qk_nope_head_dim": attention.plain_width,
        "qk_rope_head_dim": attention.rotated_width,
        "v_head_dim": attention.value_width,
        "rope_interleave": isinstance(attention.positions, InterleavedRotaryEmbedding.Config),
        **rotary_to_hf(attention.positions),
    }
    scaling = getattr(attention.positions, "scaling", None)
    if isinstance(scaling, YarnScaling.Config):
        written["rope_scaling"] |= _mscale_to_hf(attention, scaling)
    return written


def _mscale_to_hf(attention: Any, scaling: YarnScaling.Config) -> dict[str, Any]:
    """Recovers mscale and mscale_all_dim from the magnitude and the softmax scale."""
    width = attention.plain_width + attention.rotated_width
    factor = ((attention.scale or width**-0.5) * width**0.5) ** 0.5
    step = yarn_magnitude(scaling.factor) - 1.0
    all_dims = round((factor - 1.0) / step, 6)
    magnitude = yarn_magnitude(scaling.factor) if scaling.magnitude is None else scaling.magnitude
    return {
        "mscale": round((magnitude * (1.0 + all_dims * step) - 1.0) / step, 6),
        "mscale_all_dim": all_dims,
    }


def tiny() -> dict[str, Any]:
    """A dense layer, two shared experts, expert groups, a low-rank query, YaRN with mscale."""
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


_HF_ATTENTION, _ATTENTION_PATH = f"{LAYER}.self_attn", f"{BLOCK}/attention"
_SHARED, _FEED_FORWARD = f"{LAYER}.mlp.shared_experts", f"{BLOCK}/feed_forward"
FAMILY = register_family(
    ModelFamily(
        name="deepseek-v3",
        model_type="deepseek_v3",
        architecture="DeepseekV3ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(
            *EMBED_AND_HEAD,
            *PRE_NORMS,
            *FEED_FORWARD,
            *EXPERTS,
            *linear(f"{_HF_ATTENTION}.q_proj", f"{_ATTENTION_PATH}/query"),
            *linear(f"{_HF_ATTENTION}.q_a_proj", f"{_ATTENTION_PATH}/query/down"),
            norm(f"{_HF_ATTENTION}.q_a_layernorm", f"{_ATTENTION_PATH}/query/norm"),
            *linear(f"{_HF_ATTENTION}.q_b_proj", f"{_ATTENTION_PATH}/query/up"),
            *linear(f"{_HF_ATTENTION}.kv_a_proj_with_mqa", f"{_ATTENTION_PATH}/latent"),
            norm(f"{_HF_ATTENTION}.kv_a_layernorm", f"{_ATTENTION_PATH}/latent_norm"),
            *linear(f"{_HF_ATTENTION}.kv_b_proj", f"{_ATTENTION_PATH}/expand"),
            *linear(f"{_HF_ATTENTION}.o_proj", f"{_ATTENTION_PATH}/output"),
            WeightRule(
                f"{LAYER}.mlp.gate.e_score_correction_bias", f"{_FEED_FORWARD}/router/bias/bias"
            ),
            *linear(f"{_SHARED}.gate_proj", f"{_FEED_FORWARD}/shared/gate"),
            *linear(f"{_SHARED}.up_proj", f"{_FEED_FORWARD}/shared/up"),
            *linear(f"{_SHARED}.down_proj", f"{_FEED_FORWARD}/shared/down"),
        ),
        # The multi-token prediction layer, which follows the last layer.
        ignored=("model.layers.61.*",),
        tiny=tiny,
    )
)
