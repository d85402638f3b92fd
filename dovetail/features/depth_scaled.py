"""Branches scaled by depth: `--with depth-scaled`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
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
    from dovetail.layers import Decoder
    from dovetail.layers.residual.scaled import branches_of, with_scaled_branches

    def scaled(decoder: Any) -> Any:
        return with_scaled_branches(decoder, branches_of(decoder.stack) ** -0.5)

    return replace(config, Decoder, scaled)
