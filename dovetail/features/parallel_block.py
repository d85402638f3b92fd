"""Attention beside the feed-forward: `--with parallel-block`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "parallel-block",
    kind="stacks",
    files=("layers/stack/parallel.py",),
    needs={"dovetail.layers:TransformerBlock": "no block has a feed-forward behind its attention"},
)
def parallel_block(config: Any) -> Any:
    """Attention and feed-forward read the same normed stream, and are added to it together."""
    from dovetail.layers import TransformerBlock
    from dovetail.layers.stack.parallel import ParallelBlock

    return replace(config, TransformerBlock, ParallelBlock.Config())
