"""Qwen2 and 2.5: Llama's form, with biases on the way in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    attention,
    each_kind,
    feed_forward,
    language_model,
    llama_to_hf,
    pre_norm_block,
    windows,
    windows_to_hf,
)
from dovetail.models.family import Family, register_family
from dovetail.models.hub import (
    ATTENTION,
    FEED_FORWARD,
    PRE_NORMS,
    TABLES,
    HubConfig,
)
from dovetail.models.qwen_shared import LEFT_OUT, shared_tiny


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads the config.json of Qwen2 and 2.5."""
    hub = HubConfig(values, **LEFT_OUT)

    def block(window: int | None) -> Any:
        mixer = attention(hub, window=window, inward_bias=True)
        return pre_norm_block(hub, mixer, feed_forward(hub))

    return language_model(hub, each_kind(windows(hub), block))


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    return llama_to_hf(config) | windows_to_hf(config)


def tiny() -> dict[str, Any]:
    """Tied, with windows from the second layer on."""
    return shared_tiny()


FAMILY = register_family(
    Family(
        name="qwen2",
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(*TABLES, *ATTENTION, *FEED_FORWARD, *PRE_NORMS),
        tiny=tiny,
    )
)
