"""What families that normalise queries and keys share."""

from __future__ import annotations

from typing import Any

from dovetail.layers.linear.normed import NormedLinear
from dovetail.models.compose import rms_norm
from dovetail.models.hub import HubConfig
from dovetail.models.rotary.compose import rotary_attention


def normed_attention(hub: HubConfig, window: int | None = None) -> Any:
    """Returns attention whose queries and keys are normalised, head by head."""
    bias = hub.get("attention_bias", False)
    mixer = rotary_attention(hub, window=window, inward_bias=bias, output_bias=bias)
    width = hub.get("head_dim") or hub["hidden_size"] // hub["num_attention_heads"]
    normed = NormedLinear.Config(linear=mixer.query, norm=rms_norm(hub), group=width)
    return mixer.set(query=normed, key=normed)
