"""Norms on what branches return: `--with branch-norm`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "branch-norm",
    kind="norms",
    files=("layers/residual/branch.py",),
    needs={"dovetail.layers:NormedResidual": "no branch joins the stream at a norm"},
)
def norms_on_branches(config: Any) -> Any:
    """What a branch returns is normalised, and not what it reads (OLMo 2).

    https://arxiv.org/abs/2501.00656
    """
    from dovetail.layers import NormedResidual
    from dovetail.layers.residual.branch import BranchNorm

    return replace(config, NormedResidual, BranchNorm.Config())
