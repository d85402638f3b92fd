"""Squared ReLU: `--with relu-squared`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "relu-squared",
    kind="feed-forward",
    files=("layers/feed_forward/squared_relu.py",),
    needs={"dovetail.layers:AnyFeedForward": "there is no feed-forward to change"},
)
def squared_rectifiers(config: Any) -> Any:
    """Every feed-forward is a squared ReLU between two maps, without a gate.

    The hidden width stays, so a model whose feed-forwards had gates gets smaller
    (https://arxiv.org/abs/2109.08668).
    """
    from dovetail.layers import AnyFeedForward
    from dovetail.layers.feed_forward.plain import PlainFeedForward
    from dovetail.layers.feed_forward.squared_relu import squared_relu

    return replace(config, AnyFeedForward, PlainFeedForward.Config(activation=squared_relu))
