"""Gemma 2 and 3 (text): sandwich norms, local and global layers, bounded scores or QK-norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import Config, config_for
from dovetail.kernels.attention import SoftCap
from dovetail.layers import Scores, TransformerBlock, layers_of
from dovetail.layers.attention.soft_cap import SoftCappedScores
from dovetail.layers.embedding import ScaledEmbedding
from dovetail.layers.linear.normed import NormedLinear
from dovetail.layers.norms.offset import OffsetRMSNorm
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.layers.residual.sandwich import SandwichNorm
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    common_to_hf,
    each_kind,
    epsilon_of,
    feed_forward,
    gated_to_hf,
    language_model,
)
from dovetail.models.family import Family, register_family
from dovetail.models.hub import (
    ATTENTION,
    BLOCK,
    FEED_FORWARD,
    GLOBAL,
    HEAD_NORMS,
    LAYER,
    LOCAL,
    TABLES,
    TINY,
    HubConfig,
    norm,
    window_of,
)
from dovetail.models.rotary import rotary_of, rotary_to_hf
from dovetail.models.rotary.compose import rotary_attention

# What keys mean that are left out, in both.
LEFT_OUT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def gemma2_from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of Gemma 2: every other layer is local, the first one too."""
    hub = HubConfig(values, **LEFT_OUT)
    hub.only("use_bidirectional_attention", False)

    def block(kind: str) -> Any:
        cap = hub.stated("attn_logit_softcapping")
        scores = Scores.Config() if cap is None else SoftCappedScores.Config(cap=float(cap))
        return _block(hub, _mixer(hub, kind).set(scores=scores))

    layers = each_kind(_kinds(hub, period=2), block)
    return _model(hub, layers).set(logit_map=_cap(hub.stated("final_logit_softcapping")))


def gemma2_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    first = layers_of(config.decoder.stack)[0].attention
    caps = {
        "attn_logit_softcapping": getattr(first.scores, "cap", None),
        "final_logit_softcapping": None if config.logit_map is None else config.logit_map.cap,
    }
    return _to_hf(config) | rotary_to_hf(first.positions) | caps


def gemma3_from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of Gemma 3's text models: one global layer after five local ones."""
    hub = HubConfig(values, **LEFT_OUT)
    hub.only("use_bidirectional_attention", False)
    hub.only("final_logit_softcapping", None)

    def block(kind: str) -> Any:
        mixer = _mixer(hub, kind, positions=_gemma3_positions(hub, kind))
        norm = OffsetRMSNorm.Config(epsilon=hub.get("rms_norm_eps", 1e-6))
        normed = NormedLinear.Config(linear=mixer.query, norm=norm, group=hub["head_dim"])
        return _block(hub, mixer.set(query=normed, key=normed))

    kinds = _kinds(hub, period=hub.get("sliding_window_pattern", 6))
    return _model(hub, each_kind(kinds, block))


def gemma3_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    positions = {
        window_of(layer.attention.mask) is not None: layer.attention.positions
        for layer in layers_of(config.decoder.stack)
    }
    written = rotary_to_hf(positions.get(False, positions.get(True)))
    local = positions.get(True, RotaryEmbedding.Config())
    return _to_hf(config) | written | {"rope_local_base_freq": local.base}


def _gemma3_positions(hub: HubConfig, kind: str) -> RotaryEmbedding.Config:
    """Each kind of layer has its own base; the older form stretches global layers alone."""
    given = (hub.get("rope_parameters") or {}).get(kind) or {}
    if kind == LOCAL:
        return rotary_of(given, hub, 10_000.0, key="rope_local_base_freq")
    given = {**given, **(hub.get("rope_scaling") or {})}
    return rotary_of(given, hub, 1_000_000.0)


def _kinds(hub: HubConfig, period: int) -> list[str]:
    """Returns local or global for each layer; by default the last of each period is global."""
    count = hub["num_hidden_layers"]
    default = [GLOBAL if (index + 1) % period == 0 else LOCAL for index in range(count)]
    return hub.layer_kinds(default)


def _mixer(hub: HubConfig, kind: str, **changes: Any) -> Any:
    bias = hub.get("attention_bias", False)
    return rotary_attention(
        hub,
        window=hub["sliding_window"] if kind == LOCAL else None,
        inward_bias=bias,
        output_bias=bias,
        scale=hub["query_pre_attn_scalar"] ** -0.5,
        **changes,
    )


def _block(hub: HubConfig, mixer: Config[Any]) -> Config[Any]:
    norm = OffsetRMSNorm.Config(epsilon=hub.get("rms_norm_eps", 1e-6))
    joint = SandwichNorm.Config(norm=norm, output_norm=norm)
    return TransformerBlock.Config(
        attention=mixer,
        attention_residual=joint,
        feed_forward=feed_forward(hub, "hidden_activation", "gelu_pytorch_tanh"),
        feed_forward_residual=joint,
    )


def _model(hub: HubConfig, layers: list[Config[Any]]) -> CausalLM.Config:
    norm = OffsetRMSNorm.Config(epsilon=hub.get("rms_norm_eps", 1e-6))
    return language_model(hub, layers, norm=norm, tied=True, embedding=ScaledEmbedding.Config())


def _cap(value: float | None) -> Any:
    return None if value is None else config_for(SoftCap, cap=float(value))


def _to_hf(config: CausalLM.Config) -> dict[str, Any]:
    layers = layers_of(config.decoder.stack)
    windows = [window_of(layer.attention.mask) for layer in layers]
    first = layers[0]
    return {
        **common_to_hf(config),
        **gated_to_hf(first.feed_forward, "hidden_activation", "gelu_pytorch_tanh"),
        "attention_bias": first.attention.output.bias,
        "rms_norm_eps": epsilon_of(config.decoder.norm),
        "query_pre_attn_scalar": _whole(first.attention.scale**-2),
        "sliding_window": next((window for window in windows if window), None),
        "layer_types": [LOCAL if window else GLOBAL for window in windows],
    }


def _whole(number: float) -> float | int:
    return round(number) if abs(number - round(number)) < 1e-9 * number else number


def _tiny() -> dict[str, Any]:
    return TINY | {
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 5,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }


def gemma2_tiny() -> dict[str, Any]:
    """Low caps, so that they matter."""
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    return _tiny() | caps | {"num_hidden_layers": 4, "rope_theta": 10_000.0}


def gemma3_tiny() -> dict[str, Any]:
    """A number of layers that the pattern does not divide, and stretched global positions."""
    return _tiny() | {
        "num_hidden_layers": 8,
        "layer_types": [GLOBAL if index % 3 == 2 else LOCAL for index in range(8)],
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }


NORMS = (
    norm(f"{LAYER}.input_layernorm", f"{BLOCK}/attention_residual/norm"),
    norm(f"{LAYER}.post_attention_layernorm", f"{BLOCK}/attention_residual/output_norm"),
    norm(f"{LAYER}.pre_feedforward_layernorm", f"{BLOCK}/feed_forward_residual/norm"),
    norm(f"{LAYER}.post_feedforward_layernorm", f"{BLOCK}/feed_forward_residual/output_norm"),
)
GEMMA2 = register_family(
    Family(
        name="gemma2",
        model_type="gemma2",
        architecture="Gemma2ForCausalLM",
        from_hf=gemma2_from_hf,
        to_hf=gemma2_to_hf,
        weights=(*TABLES, *ATTENTION, *FEED_FORWARD, *NORMS),
        tiny=gemma2_tiny,
    )
)
GEMMA3 = register_family(
    Family(
        name="gemma3",
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        from_hf=gemma3_from_hf,
        to_hf=gemma3_to_hf,
        weights=(*TABLES, *ATTENTION, *HEAD_NORMS, *FEED_FORWARD, *NORMS),
        tiny=gemma3_tiny,
    )
)
