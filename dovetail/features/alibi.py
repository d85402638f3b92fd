"""ALiBi: `--with alibi`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "alibi",
    kind="positions",
    files=("layers/positions/alibi.py",),
    needs={"dovetail.layers:Scores": "there are no scores to take distances off"},
    excludes={"dovetail.layers.positions.alibi:Alibi": "once is enough"},
)
def linear_biases(config: Any) -> Any:
    """Scores fall with distance, each head at its own pace; no other positions."""
    from dovetail.layers import AnyPositions, NoPositions, Scores
    from dovetail.layers.positions.alibi import Alibi

    config = replace(config, AnyPositions, NoPositions.Config())
    return replace(config, Scores, Alibi.Config())
