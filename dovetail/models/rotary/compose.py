"""What families with rotary positions share."""

from __future__ import annotations

from typing import Any

from dovetail.layers import Attention, layers_of
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import attention, common_to_hf, epsilon_of, gated_to_hf
from dovetail.models.hub import HubConfig
from dovetail.models.rotary.format import rotary_from_hf, rotary_to_hf


def rotary_attention(hub: HubConfig, base: float = 10_000.0, **changes: Any) -> Attention.Config:
    """Returns grouped attention whose positions are rotary; `base` is what a left-out key means."""
    return attention(hub, **{"positions": rotary_from_hf(hub, base=base), **changes})


def llama_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes what most families have in common: alike blocks, rotary positions, gated maps."""
    block = layers_of(config.decoder.stack)[0]
    return {
        **common_to_hf(config),
        **gated_to_hf(block.feed_forward),
        **rotary_to_hf(block.attention.positions),
        "rms_norm_eps": epsilon_of(config.decoder.norm),
    }
