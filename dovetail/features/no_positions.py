"""No positions: `--with no-positions`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature
from dovetail.features.positions import told_positions


@feature(
    "no-positions",
    kind="positions",
    needs={"dovetail.layers:AnyPositions": "there are no positions to leave out"},
)
def without_positions(config: Any) -> Any:
    """Order is known from the causal mask alone (https://arxiv.org/abs/2305.19466)."""
    return told_positions(config)
