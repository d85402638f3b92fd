"""Branches scaled by depth: `--with depth-scaled`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace, select
from dovetail.features.feature import feature


@feature(
    "depth-scaled",
    kind="residual scaling",
    files=("layers/residual/scaled.py",),
    needs={
        "dovetail.layers:NormedResidual": "no branch joins a stream",
        "dovetail.layers:Decoder": "there are no layers to count",
    },
    excludes={"dovetail.layers.residual.scaled:ScaledBranch": "once is enough"},
)
def scaled_by_depth(config: Any) -> Any:
    """Branches are multiplied by one over the root of their number, 2 a layer as a rule.

    A fixed factor, not an initial value: so the sum of all branches begins as large as one of them,
    whatever the optimizer does later (GPT-2 scales initial values for the same end).
    """
    from dovetail.layers import Decoder, NormedResidual, layers_of
    from dovetail.layers.residual.scaled import ScaledBranch

    def scaled(old: Any) -> Any:
        branches = sum(len(select(layer, NormedResidual)) for layer in layers_of(old.stack))
        branch = ScaledBranch.Config(factor=branches**-0.5)
        around = lambda joint: joint.set(dropout=branch.clone(dropout=joint.dropout))  # noqa: E731
        return replace(old, NormedResidual, around)

    return replace(config, Decoder, scaled)
