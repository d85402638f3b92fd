"""Low-rank adapters: `--with lora:rank=8`, usually after `--with from-run:path=RUN`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "lora",
    kind="adaptation",
    files=("layers/linear/lora.py",),
    needs={"dovetail.layers:Linear": "there is nothing to adapt"},
    excludes={
        "dovetail.layers.linear.adapter:Adapter": "to begin anew from a run with adapters, export "
        "it (`dovetail export hf` merges them) and import that"
    },
)
def low_rank_adapters(config: Any, rank: int = 8, alpha: float = 16.0) -> Any:
    """Every linear map outside `Exact` parts gets an adapter, and only the adapters are trained."""
    from dovetail.layers import Exact, Linear
    from dovetail.layers.linear.lora import LoRA

    adapted = replace(config, Linear, LoRA.Config(rank=rank, alpha=alpha), outside=(Exact,))
    # What the experiment freezes stays frozen, adapters too: the last pattern decides.
    adapted.learner.frozen = ("*", "!*/lora_a", "!*/lora_b", *config.learner.frozen)
    return adapted
