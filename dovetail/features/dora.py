"""Adapters of length and direction: `--with dora:rank=8`, after `--with from-run:path=RUN`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "dora",
    kind="adaptation",
    files=("layers/linear/dora.py",),
    needs={"dovetail.layers:Linear": "there is nothing to adapt"},
    excludes={
        "dovetail.layers.linear.adapter:Adapter": "to adapt the sum, export it and import that"
    },
)
def length_and_direction(config: Any, rank: int = 8, alpha: float = 16.0) -> Any:
    """Every linear map outside `Exact` parts gets an adapter, and only the adapters are trained."""
    from dovetail.layers import Exact, Linear
    from dovetail.layers.linear.dora import DoRA

    adapted = replace(config, Linear, DoRA.Config(rank=rank, alpha=alpha), outside=(Exact,))
    # What the experiment freezes stays frozen, adapters too: the last pattern decides.
    adapted.learner.frozen = ("*", "!*/dora_*", *config.learner.frozen)
    return adapted
