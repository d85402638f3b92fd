"""Rotary positions, stretched evenly: `--with rope-linear:factor=2`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "rope-linear",
    kind="positions",
    builds_on=("rope",),
    files=("layers/positions/linear_scaling.py", "models/rotary/linear.py"),
    needs={
        "dovetail.layers.positions.scaling:FrequencyScaling": "there are no rotary frequencies to "
        "stretch"
    },
)
def linear_scaling(config: Any, factor: float = 2.0) -> Any:
    """Stretches all rotary positions alike (https://arxiv.org/abs/2306.15595)."""
    from dovetail.layers.positions.linear_scaling import LinearScaling
    from dovetail.layers.positions.scaling import FrequencyScaling

    return replace(config, FrequencyScaling, LinearScaling.Config(factor=factor))
