"""Dynamic tanh: `--with dynamic-tanh`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature(
    "dynamic-tanh",
    kind="norms",
    files=("layers/norms/dynamic_tanh.py",),
    needs={"dovetail.layers:NormedResidual": "there is no stream with norms"},
)
def dynamic_tanhs(config: Any) -> Any:
    """Every norm of the stream is a tanh of learned steepness (https://arxiv.org/abs/2503.10622)."""
    from dovetail.layers.norms.dynamic_tanh import DynamicTanh
    from dovetail.layers.norms.stream import with_stream_norm

    return with_stream_norm(config, DynamicTanh.Config())
