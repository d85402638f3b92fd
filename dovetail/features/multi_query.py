"""Multi-query attention: `--with multi-query`."""

from __future__ import annotations

from typing import Any

from dovetail.config import select
from dovetail.features.feature import feature


@feature(
    "multi-query",
    kind="attention",
    needs={"dovetail.layers:Attention": "there are no key-value heads to share"},
)
def multi_query(config: Any) -> Any:
    """All heads share one head of keys and values (https://arxiv.org/abs/1911.02150)."""
    from dovetail.layers import Attention

    return select(config, Attention).set(num_kv_heads=1)
