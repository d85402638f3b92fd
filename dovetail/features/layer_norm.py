"""LayerNorm: `--with layer-norm`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature(
    "layer-norm",
    kind="norms",
    files=("layers/norms/layer.py",),
    needs={"dovetail.layers:NormedResidual": "there is no stream with norms"},
)
def layer_norms(config: Any) -> Any:
    """Every norm of the stream centres and scales (https://arxiv.org/abs/1607.06450)."""
    from dovetail.layers.norms.layer import LayerNorm
    from dovetail.layers.norms.stream import with_stream_norm

    return with_stream_norm(config, LayerNorm.Config())
