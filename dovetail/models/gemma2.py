"""Gemma 2: sandwich norms, every other layer local, and bounded scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import config_for
from dovetail.kernels.attention import SoftCap
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
    TABLES,
    HubConfig,
    layers_of,
    rotary_to_hf,
)


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of Gemma 2: every other layer is local, the first one too."""
    hub = HubConfig(values, **LEFT_OUT)
    hub.only("use_bidirectional_attention", False)

    def block(kind: str) -> Any:
        cap = _cap(hub.stated("attn_logit_softcapping"))
        return block_around(hub, mixer(hub, kind).set(score_map=cap))

    layers = each_kind(layer_kinds(hub, period=2), block)
    return model_of(hub, layers).set(logit_map=_cap(hub.stated("final_logit_softcapping")))


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    first = layers_of(config.decoder.stack)[0].attention
    caps = {
        "attn_logit_softcapping": None if first.score_map is None else first.score_map.cap,
        "final_logit_softcapping": None if config.logit_map is None else config.logit_map.cap,
    }
    return shared_to_hf(config) | rotary_to_hf(first.positions) | caps


def _cap(value: float | None) -> Any:
    return None if value is None else config_for(SoftCap, cap=float(value))


def tiny() -> dict[str, Any]:
    """Low caps, so that they matter."""
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    return shared_tiny() | caps | {"num_hidden_layers": 4, "rope_theta": 10_000.0}


FAMILY = register_family(
    Family(
        name="gemma2",
        model_type="gemma2",
        architecture="Gemma2ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*TABLES, *ATTENTION, *FEED_FORWARD, *NORMS),
        tiny=tiny,
    )
)
