"""Llama 3.1's scaling in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers.positions.llama3_scaling import Llama3Scaling
from dovetail.models.hub import HubConfig
from dovetail.models.rotary.format import (
    ScalingFormat,
    original_length,
    register_scaling,
    rotary_number,
)


def _read(given: Mapping[str, Any], hub: HubConfig) -> Llama3Scaling.Config:
    return Llama3Scaling.Config(
        factor=rotary_number(given, "factor"),
        original_length=original_length(given, hub),
        low_frequency_factor=rotary_number(given, "low_freq_factor"),
        high_frequency_factor=rotary_number(given, "high_freq_factor"),
    )


def _write(scaling: Llama3Scaling.Config) -> dict[str, Any]:
    return {
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_length,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
    }


register_scaling(
    ScalingFormat(rope_type="llama3", part=Llama3Scaling.Config, read=_read, write=_write)
)
