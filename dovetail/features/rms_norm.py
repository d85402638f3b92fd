"""RMSNorm: `--with rms-norm`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature(
    "rms-norm",
    kind="norms",
    needs={"dovetail.layers:NormedResidual": "there is no stream with norms"},
)
def root_mean_squares(config: Any) -> Any:
    """Every norm of the stream divides by the root mean square (https://arxiv.org/abs/1910.07467)."""
    from dovetail.layers import RMSNorm
    from dovetail.layers.norms.stream import with_stream_norm

    return with_stream_norm(config, RMSNorm.Config())
