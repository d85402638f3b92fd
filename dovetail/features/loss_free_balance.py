"""Balance by a bias instead of a loss: `--with loss-free-balance`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace, select
from dovetail.features.feature import feature


@feature(
    "loss-free-balance",
    kind="feed-forward",
    builds_on=("moe",),
    needs={"dovetail.layers.moe:TopKRouter": "there is no choice of experts to bias"},
)
def balance_by_bias(config: Any, rate: float = 1e-3) -> Any:
    """A bias on the choice of experts evens the load out, and no loss does.

    https://arxiv.org/abs/2408.15664
    """
    from dovetail.layers.moe import LossFreeBias, MixtureOfExperts, TopKRouter, without_balance_loss

    config = replace(config, MixtureOfExperts, without_balance_loss)
    return select(config, TopKRouter).set(bias=LossFreeBias.Config(rate=rate))
