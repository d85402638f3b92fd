"""Grouped-query attention: `--with grouped-query:num_kv_heads=8`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "grouped-query",
    kind="attention",
    needs={"dovetail.layers:Attention": "there are no key-value heads to share"},
)
def grouped_query(config: Any, num_kv_heads: int | None = None) -> Any:
    """Groups of heads share keys and values, four or more unless told (https://arxiv.org/abs/2305.13245)."""
    from dovetail.layers import Attention

    def grouped(old: Any) -> Any:
        most = min(max(1, old.num_heads // 4), old.num_kv_heads or old.num_heads)
        divisors = [count for count in range(1, most + 1) if old.num_heads % count == 0]
        return old.set(num_kv_heads=max(divisors) if num_kv_heads is None else num_kv_heads)

    return replace(config, Attention, grouped)
