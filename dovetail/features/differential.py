"""Differential attention: `--with differential`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "differential",
    kind="attention",
    files=("layers/attention/differential.py",),
    needs={"dovetail.layers:Mixing": "there are no attention maps to take apart"},
    excludes={"dovetail.layers.attention.differential:DifferentialHeads": "once is enough"},
)
def differential_attention(config: Any, first_weight: float = 0.8) -> Any:
    """Each head takes one attention map off another (https://arxiv.org/abs/2410.05258)."""
    from dovetail.layers import Mixing
    from dovetail.layers.attention.differential import DifferentialHeads

    return replace(config, Mixing, DifferentialHeads.Config(first_weight=first_weight))
