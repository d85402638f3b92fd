"""A feed-forward without a gate: `--with plain-feed-forward`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "plain-feed-forward",
    kind="feed-forward",
    needs={"dovetail.layers:AnyFeedForward": "there is no feed-forward to take a gate from"},
)
def without_gates(config: Any) -> Any:
    """No feed-forward has a gate: GELU between two maps.

    The hidden width stays, so a model whose feed-forwards had gates gets smaller: for the size of
    before, set `hidden` to one and a half of it.
    """
    import jax

    from dovetail.layers import AnyFeedForward
    from dovetail.layers.feed_forward.plain import PlainFeedForward

    return replace(config, AnyFeedForward, PlainFeedForward.Config(activation=jax.nn.gelu))
