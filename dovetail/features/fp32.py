"""Computing in float32: `--with fp32`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature("fp32", kind="precision")
def in_float32(config: Any) -> Any:
    """Computes in float32, whatever the experiment says."""
    config.model.dtype = "float32"
    return config
