"""Feed-forward activations, with and without a gate. The hidden width stays."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature

_NEEDS = {"dovetail.layers:BaseFeedForward": "there is no feed-forward to replace"}


@feature("swiglu", needs=_NEEDS)
def swiglu(config: Any) -> Any:
    """SwiGLU feed-forward (https://arxiv.org/abs/2002.05202)."""
    import jax

    from dovetail.layers import BaseFeedForward, FeedForward

    return replace(config, BaseFeedForward, FeedForward.Config(activation=jax.nn.silu))


@feature("geglu", needs=_NEEDS)
def geglu(config: Any) -> Any:
    """GeGLU feed-forward (https://arxiv.org/abs/2002.05202)."""
    import jax

    from dovetail.layers import BaseFeedForward, FeedForward

    return replace(config, BaseFeedForward, FeedForward.Config(activation=jax.nn.gelu))


@feature("plain-feed-forward", needs=_NEEDS)
def plain_feed_forward(config: Any) -> Any:
    """GELU feed-forward without a gate.

    A model whose feed-forwards had gates loses a third of their parameters. Multiply `hidden` by
    1.5 to compensate.
    """
    import jax

    from dovetail.layers import BaseFeedForward
    from dovetail.layers.feed_forward import PlainFeedForward

    return replace(config, BaseFeedForward, PlainFeedForward.Config(activation=jax.nn.gelu))


@feature("relu-squared", files=("layers/feed_forward.py:squared_relu",), needs=_NEEDS)
def relu_squared(config: Any) -> Any:
    """Squared-ReLU feed-forward without a gate (Primer, https://arxiv.org/abs/2109.08668).

    As with `plain-feed-forward`, a gated model loses a third of its feed-forward parameters.
    """
    from dovetail.layers import BaseFeedForward
    from dovetail.layers.feed_forward import PlainFeedForward, squared_relu

    return replace(config, BaseFeedForward, PlainFeedForward.Config(activation=squared_relu))
