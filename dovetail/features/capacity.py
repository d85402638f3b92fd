"""Experts of a fixed capacity: `--with capacity:factor=1.25`."""

from __future__ import annotations

from typing import Any

from dovetail.config import select
from dovetail.features.feature import feature


@feature(
    "capacity",
    kind="feed-forward",
    builds_on=("moe",),
    needs={"dovetail.layers.moe:MixtureOfExperts": "there are no experts to limit"},
)
def limited_experts(config: Any, factor: float = 1.25) -> Any:
    """In training an expert takes so many tokens of a row, and no more; generation drops none.

    GShard, https://arxiv.org/abs/2006.16668.
    """
    from dovetail.layers.moe import Capacity, MixtureOfExperts

    return select(config, MixtureOfExperts).set(dispatch=Capacity.Config(factor=factor))
