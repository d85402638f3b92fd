"""Blocks and stacks: parallel attention and feed-forward, shared parameters."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "parallel-block",
    files=("layers/stack/blocks.py:ParallelBlock",),
    needs={"dovetail.layers:TransformerBlock": "there is no block of attention and feed-forward"},
)
def parallel_block(config: Any) -> Any:
    """Parallel block: attention and feed-forward read the same input and are summed."""
    from dovetail.layers import TransformerBlock
    from dovetail.layers.stack.blocks import ParallelBlock

    return replace(config, TransformerBlock, ParallelBlock.Config())


@feature(
    "shared-layers",
    files=("layers/stack/stack.py:SharedStack",),
    needs={"dovetail.layers:Stack": "there is no stack of layers to share parameters in"},
    excludes={"dovetail.layers.stack.stack:SharedStack": "its layers share parameters"},
)
def shared_layers(config: Any) -> Any:
    """Parameter sharing across layers: all layers of a stack use one layer's parameters.

    A repeating pattern of layers is shared as one.
    """
    from dovetail.layers import Stack
    from dovetail.layers.stack.stack import SharedStack

    return replace(config, Stack, SharedStack.Config())
