"""Label smoothing: `--with label-smoothing:share=0.1`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "label-smoothing",
    kind="learning",
    files=("layers/loss/smoothing.py",),
    needs={"dovetail.layers:AnyLoss": "there are no labels"},
    excludes={"dovetail.layers.loss.smoothing:SmoothedLoss": "set its share with key.path=value"},
)
def spread_targets(config: Any, share: float = 0.1) -> Any:
    """A share of each target is spread over the vocabulary."""
    from dovetail.layers import AnyLoss
    from dovetail.layers.loss.smoothing import SmoothedLoss

    return replace(config, AnyLoss, SmoothedLoss.Config(share=share))
