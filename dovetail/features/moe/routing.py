"""Routing and load balancing of experts."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace, select
from dovetail.features.feature import feature


@feature(
    "capacity",
    builds_on=("moe",),
    needs={"dovetail.layers.moe:MixtureOfExperts": "there are no experts with a capacity"},
)
def capacity(config: Any, factor: float = 1.25) -> Any:
    """Expert capacity: drops tokens beyond `factor` times an even load, in training only.

    GShard, https://arxiv.org/abs/2006.16668.
    """
    from dovetail.layers.moe import Capacity, MixtureOfExperts

    return select(config, MixtureOfExperts).set(dispatch=Capacity.Config(factor=factor))


@feature(
    "expert-choice",
    builds_on=("moe",),
    files=("layers/moe/capacity.py:ExpertChoice",),
    needs={"dovetail.layers.moe:MixtureOfExperts": "there are no experts"},
)
def expert_choice(config: Any, factor: float = 1.0) -> Any:
    """Expert-choice routing: in training, each expert takes its top tokens of a row.

    Loads are even by construction, so the balance loss is removed. Router weights are the softmax
    probabilities (https://arxiv.org/abs/2202.09368). Generation routes by token choice, since
    later tokens are unknown.
    """
    from dovetail.layers.moe import MixtureOfExperts, ScoreWeights, TopKRouter, without_balance_loss
    from dovetail.layers.moe.capacity import ExpertChoice

    config = replace(config, MixtureOfExperts, without_balance_loss)
    return select(config, MixtureOfExperts).set(
        dispatch=ExpertChoice.Config(factor=factor),
        router=TopKRouter.Config(weights=ScoreWeights.Config()),
    )


@feature(
    "loss-free-balance",
    builds_on=("moe",),
    needs={"dovetail.layers.moe:TopKRouter": "there is no router to bias"},
)
def loss_free_balance(config: Any, rate: float = 1e-3) -> Any:
    """Auxiliary-loss-free balancing: a bias on the router's scores, updated by load.

    It replaces the balance loss (https://arxiv.org/abs/2408.15664).
    """
    from dovetail.layers.moe import LossFreeBias, MixtureOfExperts, TopKRouter, without_balance_loss

    config = replace(config, MixtureOfExperts, without_balance_loss)
    return select(config, TopKRouter).set(bias=LossFreeBias.Config(rate=rate))


@feature(
    "router-z-loss",
    builds_on=("moe",),
    needs={"dovetail.layers.moe:MixtureOfExperts": "there is no router"},
)
def router_z_loss(config: Any, coefficient: float = 0.001) -> Any:
    """Router z-loss: keeps router logits small (ST-MoE).

    https://arxiv.org/abs/2202.08906
    """
    from dovetail.layers.moe import MixtureOfExperts, RouterZLoss

    loss = RouterZLoss.Config(coefficient=coefficient)

    def with_loss(mixture: Any) -> Any:
        return mixture.set(losses={**mixture.losses, "z": loss})

    return replace(config, MixtureOfExperts, with_loss)
