"""Norms after sums: `--with post-norm`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "post-norm",
    kind="norms",
    files=("layers/residual/post.py",),
    needs={"dovetail.layers:NormedResidual": "no branch joins the stream at a norm"},
)
def norms_after(config: Any) -> Any:
    """The stream is normalised after each sum, as in the first transformers.

    The decoder's last norm stays (https://arxiv.org/abs/1706.03762).
    """
    from dovetail.layers import NormedResidual
    from dovetail.layers.residual.post import PostNorm

    return replace(config, NormedResidual, PostNorm.Config())
