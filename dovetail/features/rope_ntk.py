"""Rotary positions of a raised base: `--with rope-ntk:factor=2`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "rope-ntk",
    kind="positions",
    builds_on=("rope",),
    files=("layers/positions/ntk_scaling.py",),
    needs={
        "dovetail.layers.positions.scaling:FrequencyScaling": "there are no rotary frequencies to "
        "stretch"
    },
)
def ntk_scaling(config: Any, factor: float = 2.0) -> Any:
    """Stretches slow rotary pairs, by a raised base, and fast ones hardly ("NTK-aware")."""
    from dovetail.layers.positions.ntk_scaling import NtkScaling
    from dovetail.layers.positions.scaling import FrequencyScaling

    return replace(config, FrequencyScaling, NtkScaling.Config(factor=factor))
