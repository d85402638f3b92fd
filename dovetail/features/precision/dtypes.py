"""Mixed precision: the compute dtype beside parameters in float32."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature("bf16")
def bf16(config: Any) -> Any:
    """Mixed precision: bfloat16 compute; parameters, optimizer and sensitive ops in float32."""
    config.model.dtype = "bfloat16"
    return config


@feature("fp32")
def fp32(config: Any) -> Any:
    """float32 compute."""
    config.model.dtype = "float32"
    return config
