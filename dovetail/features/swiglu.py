"""SwiGLU: `--with swiglu`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "swiglu",
    kind="feed-forward",
    needs={"dovetail.layers:AnyFeedForward": "there is no feed-forward to give a gate"},
)
def swish_gates(config: Any) -> Any:
    """Every feed-forward gets a gate with a swish; its hidden width stays.

    https://arxiv.org/abs/2002.05202
    """
    import jax

    from dovetail.layers import AnyFeedForward, FeedForward

    return replace(config, AnyFeedForward, FeedForward.Config(activation=jax.nn.silu))
