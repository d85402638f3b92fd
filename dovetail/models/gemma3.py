"""Gemma 3 (text): sandwich norms, QK-norm, one global layer after five local ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import layers_of
from dovetail.layers.linear.linear import NormedLinear
from dovetail.layers.norms import OffsetRMSNorm
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import layers_by_kind
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.gemma_shared import (
    DEFAULTS,
    NORMS,
    gemma_attention,
    gemma_model,
    layer_kinds,
    sandwich_block,
    shared_tiny,
    shared_to_hf,
)
from dovetail.models.hf import (
    ATTENTION,
    EMBED_AND_HEAD,
    FEED_FORWARD,
    GLOBAL,
    LOCAL,
    QK_NORMS,
    HFConfig,
    window_of,
)
from dovetail.models.rotary import rotary_from_parameters, rotary_to_hf


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of Gemma 3's text models: one global layer after five local ones."""
    hf = HFConfig(values, **DEFAULTS)
    hf.require("use_bidirectional_attention", False)
    hf.require("final_logit_softcapping", None)

    def block(kind: str) -> Any:
        attention = gemma_attention(hf, kind, positions=_positions(hf, kind))
        norm = OffsetRMSNorm.Config(epsilon=hf.get("rms_norm_eps", 1e-6))
        normed = NormedLinear.Config(linear=attention.query, norm=norm, group=hf["head_dim"])
        return sandwich_block(hf, attention.set(query=normed, key=normed))

    kinds = layer_kinds(hf, period=hf.get("sliding_window_pattern", 6))
    return gemma_model(hf, layers_by_kind(kinds, block))


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    positions = {
        window_of(layer.attention.mask) is not None: layer.attention.positions
        for layer in layers_of(config.decoder.stack)
    }
    written = rotary_to_hf(positions.get(False, positions.get(True)))
    local = positions.get(True, RotaryEmbedding.Config())
    return shared_to_hf(config) | written | {"rope_local_base_freq": local.base}


def _positions(hf: HFConfig, kind: str) -> RotaryEmbedding.Config:
    """Each kind of layer has its own base; the older form only scales global layers."""
    given = (hf.get("rope_parameters") or {}).get(kind) or {}
    if kind == LOCAL:
        return rotary_from_parameters(given, hf, 10_000.0, key="rope_local_base_freq")
    given = {**given, **(hf.get("rope_scaling") or {})}
    return rotary_from_parameters(given, hf, 1_000_000.0)


def tiny() -> dict[str, Any]:
    """A number of layers that the pattern does not divide, and scaled global positions."""
    return shared_tiny() | {
        "num_hidden_layers": 8,
        "layer_types": [GLOBAL if index % 3 == 2 else LOCAL for index in range(8)],
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }


FAMILY = register_family(
    ModelFamily(
        name="gemma3",
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*EMBED_AND_HEAD, *ATTENTION, *QK_NORMS, *FEED_FORWARD, *NORMS),
        tiny=tiny,
    )
)
