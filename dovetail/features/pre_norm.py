"""Norms before branches: `--with pre-norm`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "pre-norm",
    kind="norms",
    needs={"dovetail.layers:NormedResidual": "no branch joins the stream at a norm"},
)
def norms_before(config: Any) -> Any:
    """What a branch reads is normalised, and the stream is not (https://arxiv.org/abs/2002.04745)."""
    from dovetail.layers import NormedResidual, PreNorm

    return replace(config, NormedResidual, PreNorm.Config())
