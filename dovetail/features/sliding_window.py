"""A sliding window: `--with sliding-window:window=1024`."""

from __future__ import annotations

from typing import Any

from dovetail.config import config_for, replace
from dovetail.features.feature import feature


@feature(
    "sliding-window",
    kind="attention",
    needs={"dovetail.layers:AnyAttention": "there is nothing that looks back"},
    trials=({"window": 4},),
)
def sliding_window(config: Any, window: int = 1024) -> Any:
    """Every layer sees the last tokens alone (https://arxiv.org/abs/2004.05150).

    A layer that sees no more of them already stays as it is.
    """
    from dovetail.kernels.attention import SlidingWindow
    from dovetail.layers import AnyAttention

    def narrowed(attention: Any) -> Any:
        reach = attention.mask.build().reach
        if reach is not None and reach <= window:
            return attention
        return attention.set(mask=config_for(SlidingWindow, window=window))

    return replace(config, AnyAttention, narrowed)
