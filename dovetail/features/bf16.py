"""Computing in bfloat16: `--with bf16`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature("bf16", kind="precision")
def in_bfloat16(config: Any) -> Any:
    """Computes in bfloat16; parameters, optimizer and what must be exact stay in float32."""
    config.model.dtype = "bfloat16"
    return config
