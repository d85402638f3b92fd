"""No norms: `--with no-norm`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature(
    "no-norm",
    kind="norms",
    files=("layers/norms/none.py",),
    needs={"dovetail.layers:NormedResidual": "there is no stream with norms"},
)
def no_norms(config: Any) -> Any:
    """The stream has no norms."""
    from dovetail.layers.norms.none import NoNorm
    from dovetail.layers.norms.stream import with_stream_norm

    return with_stream_norm(config, NoNorm.Config())
