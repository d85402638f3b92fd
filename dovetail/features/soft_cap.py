"""Soft-capped scores: `--with soft-cap:cap=50`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "soft-cap",
    kind="attention",
    files=("layers/attention/soft_cap.py",),
    needs={"dovetail.layers:Scores": "there are no scores to bound"},
    excludes={
        "dovetail.layers.attention.soft_cap:SoftCappedScores": "set its cap with key.path=value"
    },
)
def soft_cap(config: Any, cap: float = 50.0) -> Any:
    """No score of attention grows beyond a bound (https://arxiv.org/abs/2408.00118)."""
    from dovetail.layers import Scores
    from dovetail.layers.attention.soft_cap import SoftCappedScores

    return replace(config, Scores, SoftCappedScores.Config(cap=cap))
