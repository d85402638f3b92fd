"""Activations in the host's memory: `--with offload:names=(layer_input,attention_output)`."""

from __future__ import annotations

from typing import Any

from dovetail.config import select
from dovetail.features.feature import feature

NAMES = ("layer_input", "attention_output")


@feature(
    "offload",
    kind="memory",
    needs={"dovetail.layers:Stack": "there is no stack whose layers could lend their values"},
    trials=({}, {"names": ("layer_input",), "keep": ("attention_output",)}),
)
def offloaded(config: Any, names: tuple[str, ...] = NAMES, keep: tuple[str, ...] = ()) -> Any:
    """Tagged values wait in the host's memory for the backward pass; `keep` names what stays."""
    from dovetail.layers import Stack
    from dovetail.parallel import OffloadTags

    return select(config, Stack).set(remat=OffloadTags.Config(names=names, keep=keep))
