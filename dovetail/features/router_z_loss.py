"""A loss that keeps routers' logits small: `--with router-z-loss`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "router-z-loss",
    kind="feed-forward",
    builds_on=("moe",),
    needs={"dovetail.layers.moe:MixtureOfExperts": "there is no router"},
)
def small_logits(config: Any, coefficient: float = 0.001) -> Any:
    """Routers are trained to keep their logits small, too (ST-MoE).

    https://arxiv.org/abs/2202.08906
    """
    from dovetail.layers.moe import MixtureOfExperts, RouterZLoss

    loss = RouterZLoss.Config(coefficient=coefficient)

    def with_loss(mixture: Any) -> Any:
        return mixture.set(losses={**mixture.losses, "z": loss})

    return replace(config, MixtureOfExperts, with_loss)
