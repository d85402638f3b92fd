"""One layer's parameters for all layers: `--with shared-layers`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "shared-layers",
    kind="stacks",
    files=("layers/stack/shared.py",),
    needs={"dovetail.layers:Stack": "nothing is repeated, so nothing can be shared"},
    excludes={"dovetail.layers.stack.shared:SharedStack": "its layers share their parameters"},
)
def shared_layers(config: Any) -> Any:
    """All layers of a stack use one layer's parameters; a repeated pattern is one layer."""
    from dovetail.layers import Stack
    from dovetail.layers.stack.shared import SharedStack

    return replace(config, Stack, SharedStack.Config())
