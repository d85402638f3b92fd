"""Norms on both sides of branches: `--with sandwich-norm`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "sandwich-norm",
    kind="norms",
    files=("layers/residual/sandwich.py",),
    needs={"dovetail.layers:NormedResidual": "no branch joins the stream at a norm"},
)
def norms_around(config: Any) -> Any:
    """What a branch reads is normalised, and what it returns, by norms of one kind.

    CogView, https://arxiv.org/abs/2105.13290.
    """
    from dovetail.layers import NormedResidual
    from dovetail.layers.residual.sandwich import SandwichNorm

    def around(joint: Any) -> Any:
        return joint.set(output_norm=joint.norm)

    config = replace(config, NormedResidual, SandwichNorm.Config())
    return replace(config, SandwichNorm, around)
