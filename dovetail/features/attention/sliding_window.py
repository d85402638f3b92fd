"""Sliding-window attention."""

from __future__ import annotations

from typing import Any

from dovetail.config import config_for, replace
from dovetail.features.feature import feature


@feature(
    "sliding-window",
    needs={"dovetail.layers:BaseAttention": "there is no attention to mask"},
    trials=({"window": 4},),
)
def sliding_window(config: Any, window: int = 1024) -> Any:
    """Sliding-window attention: each token attends to the last `window` tokens.

    A layer with a shorter window keeps it (https://arxiv.org/abs/2004.05150).
    """
    from dovetail.kernels.attention import SlidingWindow
    from dovetail.layers import BaseAttention

    def narrowed(attention: Any) -> Any:
        reach = attention.mask.build().reach
        if reach is not None and reach <= window:
            return attention
        return attention.set(mask=config_for(SlidingWindow, window=window))

    return replace(config, BaseAttention, narrowed)
