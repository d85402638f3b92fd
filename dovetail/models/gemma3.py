"""Gemma 3 (text): sandwich norms, one global layer after five local ones, normalised heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import (
    NormedLinear,
    OffsetRMSNorm,
    RotaryEmbedding,
)
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import each_kind
from dovetail.models.family import Family, register_family
from dovetail.models.gemma_shared import (
    LEFT_OUT,
    NORMS,
    block_around,
    layer_kinds,
    mixer,
    model_of,
    shared_tiny,
    shared_to_hf,
)
from dovetail.models.hub import (
    ATTENTION,
    FEED_FORWARD,
    GLOBAL,
    HEAD_NORMS,
    LOCAL,
    TABLES,
    HubConfig,
    layers_of,
    rotary_of,
    rotary_to_hf,
    window_of,
)


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of Gemma 3's text models: one global layer after five local ones."""
    hub = HubConfig(values, **LEFT_OUT)
    hub.only("use_bidirectional_attention", False)
    hub.only("final_logit_softcapping", None)

    def block(kind: str) -> Any:
        attention = mixer(hub, kind, positions=_positions(hub, kind))
        norm = OffsetRMSNorm.Config(epsilon=hub.get("rms_norm_eps", 1e-6))
        normed = NormedLinear.Config(linear=attention.query, norm=norm, group=hub["head_dim"])
        return block_around(hub, attention.set(query=normed, key=normed))

    kinds = layer_kinds(hub, period=hub.get("sliding_window_pattern", 6))
    return model_of(hub, each_kind(kinds, block))


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    positions = {
        window_of(layer.attention.mask) is not None: layer.attention.positions
        for layer in layers_of(config.decoder.stack)
    }
    written = rotary_to_hf(positions.get(False, positions.get(True)))
    local = positions.get(True, RotaryEmbedding.Config())
    return shared_to_hf(config) | written | {"rope_local_base_freq": local.base}


def _positions(hub: HubConfig, kind: str) -> RotaryEmbedding.Config:
    """Each kind of layer has its own base; the older form stretches global layers alone."""
    given = (hub.get("rope_parameters") or {}).get(kind) or {}
    if kind == LOCAL:
        return rotary_of(given, hub, 10_000.0, key="rope_local_base_freq")
    given = {**given, **(hub.get("rope_scaling") or {})}
    return rotary_of(given, hub, 1_000_000.0)


def tiny() -> dict[str, Any]:
    """A number of layers that the pattern does not divide, and stretched global positions."""
    return shared_tiny() | {
        "num_hidden_layers": 8,
        "layer_types": [GLOBAL if index % 3 == 2 else LOCAL for index in range(8)],
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }


FAMILY = register_family(
    Family(
        name="gemma3",
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*TABLES, *ATTENTION, *HEAD_NORMS, *FEED_FORWARD, *NORMS),
        tiny=tiny,
    )
)
