"""Attention sinks: `--with sinks`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "sinks",
    kind="attention",
    files=("layers/attention/sinks.py",),
    needs={"dovetail.layers:Scores": "there are no scores to add a sink to"},
    excludes={
        "dovetail.layers.attention.sinks:LearnedSinks": "one a head is enough",
        "dovetail.layers.attention.scores:SoftmaxFree": "a sink is a share of a softmax",
    },
)
def sinks(config: Any) -> Any:
    """Attention may go nowhere: a learned logit a head (https://arxiv.org/abs/2309.17453)."""
    from dovetail.layers import Scores
    from dovetail.layers.attention.sinks import LearnedSinks

    return replace(config, Scores, LearnedSinks.Config())
