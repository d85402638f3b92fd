"""Attention outputs per head: differential and gated attention."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "differential",
    files=("layers/attention/mixing.py:DifferentialAttention",),
    needs={"dovetail.layers:Mixing": "there are no attention maps to subtract"},
    excludes={"dovetail.layers.attention.mixing:DifferentialAttention": "it applies only once"},
)
def differential_attention(config: Any, first_weight: float = 0.8) -> Any:
    """Differential attention: each head subtracts one attention map from another.

    https://arxiv.org/abs/2410.05258
    """
    from dovetail.layers import Mixing
    from dovetail.layers.attention.mixing import DifferentialAttention

    return replace(config, Mixing, DifferentialAttention.Config(first_weight=first_weight))


@feature(
    "gated-output",
    files=("layers/attention/mixing.py:GatedAttention",),
    needs={"dovetail.layers:Mixing": "there are no heads to gate"},
    excludes={"dovetail.layers.attention.mixing:GatedAttention": "it applies only once"},
)
def gated_attention(config: Any) -> Any:
    """Gated attention: a sigmoid gate on each head's output.

    https://arxiv.org/abs/2505.06708
    """
    from dovetail.layers import Mixing
    from dovetail.layers.attention.mixing import GatedAttention

    return replace(config, Mixing, GatedAttention.Config())
