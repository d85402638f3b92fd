"""Rotary positions: `--with rope`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature
from dovetail.features.positions import told_positions


@feature(
    "rope",
    kind="positions",
    files=(
        "layers/positions/rotary.py",
        "layers/positions/interleaved.py",
        "layers/positions/scaling.py",
        "models/rotary/",
    ),
    needs={"dovetail.layers:AnyPositions": "there are no queries and keys to rotate"},
)
def rotary_positions(config: Any, base: float = 10_000.0) -> Any:
    """Queries and keys are rotated by their positions, unscaled; no other positions."""
    from dovetail.layers.positions.rotary import rotary
    from dovetail.layers.positions.scaling import NoScaling

    plain = {"base": base, "fraction": 1.0, "scaling": NoScaling.Config()}
    return told_positions(config, attention=lambda old: rotary(old, **plain))
