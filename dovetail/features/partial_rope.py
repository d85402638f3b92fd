"""Rotary positions for a part of each head: `--with partial-rope:fraction=0.25`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature
from dovetail.features.positions import told_positions


@feature(
    "partial-rope",
    kind="positions",
    builds_on=("rope",),
    needs={"dovetail.layers:AnyPositions": "there are no queries and keys to rotate"},
)
def partly_rotary_positions(config: Any, fraction: float = 0.5) -> Any:
    """Rotates the first part of each head alone; base, scaling and pairs that are there stay."""
    from dovetail.layers.positions.rotary import rotary

    return told_positions(config, attention=lambda old: rotary(old, fraction=fraction))
