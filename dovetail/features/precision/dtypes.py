"""The compute dtype."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature("bf16")
def bf16(config: Any) -> Any:
    """bfloat16 compute; parameters, optimizer state and sensitive ops stay in float32."""
    config.model.dtype = "bfloat16"
    return config


@feature("fp32")
def fp32(config: Any) -> Any:
    """float32 compute."""
    config.model.dtype = "float32"
    return config
