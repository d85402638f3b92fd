"""Gated attention: `--with gated-output`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "gated-output",
    kind="attention",
    files=("layers/attention/gated.py",),
    needs={"dovetail.layers:Mixing": "there are no heads to gate"},
    excludes={"dovetail.layers.attention.gated:GatedHeads": "one gate is enough"},
)
def gated_output(config: Any) -> Any:
    """A sigmoid of the input gates what heads have found (https://arxiv.org/abs/2505.06708)."""
    from dovetail.layers import Mixing
    from dovetail.layers.attention.gated import GatedHeads

    return replace(config, Mixing, GatedHeads.Config())
