"""Gemma 2: sandwich norms, sliding windows in every other layer, soft-capped scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import config_for
from dovetail.kernels.attention import SoftCap
from dovetail.layers import Scores, layers_of
from dovetail.layers.attention.scores import SoftCappedScores
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
    HFConfig,
)
from dovetail.models.rotary import rotary_to_hf


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of Gemma 2: every other layer is local, starting with the first."""
    hf = HFConfig(values, **DEFAULTS)
    hf.require("use_bidirectional_attention", False)

    def block(kind: str) -> Any:
        cap = hf.explicit("attn_logit_softcapping")
        scores = Scores.Config() if cap is None else SoftCappedScores.Config(cap=float(cap))
        return sandwich_block(hf, gemma_attention(hf, kind).set(scores=scores))

    model = gemma_model(hf, layers_by_kind(layer_kinds(hf, period=2), block))
    cap = hf.explicit("final_logit_softcapping")
    return model if cap is None else model.set(logit_map=config_for(SoftCap, cap=float(cap)))


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    first = layers_of(config.decoder.stack)[0].attention
    caps = {
        "attn_logit_softcapping": getattr(first.scores, "cap", None),
        "final_logit_softcapping": None if config.logit_map is None else config.logit_map.cap,
    }
    return shared_to_hf(config) | rotary_to_hf(first.positions) | caps


def tiny() -> dict[str, Any]:
    """Low caps, so that they have an effect."""
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    return shared_tiny() | caps | {"num_hidden_layers": 4, "rope_theta": 10_000.0}


FAMILY = register_family(
    ModelFamily(
        name="gemma2",
        model_type="gemma2",
        architecture="Gemma2ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*EMBED_AND_HEAD, *ATTENTION, *FEED_FORWARD, *NORMS),
        tiny=tiny,
    )
)
