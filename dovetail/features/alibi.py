"""ALiBi: `--with alibi`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature
from dovetail.features.positions import told_positions


@feature(
    "alibi",
    kind="positions",
    files=("layers/positions/alibi.py",),
    needs={"dovetail.layers:Scores": "there are no scores to take distances off"},
)
def linear_biases(config: Any) -> Any:
    """Scores fall with distance, each head at its own pace; no other positions."""
    from dovetail.layers import Scores
    from dovetail.layers.positions.alibi import Alibi

    return replace(told_positions(config), Scores, Alibi.Config())
