"""A sliding window: `--with sliding-window:window=1024`."""

from __future__ import annotations

from typing import Any

from dovetail.config import config_for, select
from dovetail.features.feature import feature


@feature(
    "sliding-window",
    kind="attention",
    needs={"dovetail.layers:AnyAttention": "there is nothing that looks back"},
)
def sliding_window(config: Any, window: int = 1024) -> Any:
    """Every layer sees the last tokens alone (https://arxiv.org/abs/2004.05150)."""
    from dovetail.kernels.attention import SlidingWindow
    from dovetail.layers import AnyAttention

    return select(config, AnyAttention).set(mask=config_for(SlidingWindow, window=window))
