"""Experts choose tokens: `--with expert-choice`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace, select
from dovetail.features.feature import feature


@feature(
    "expert-choice",
    kind="feed-forward",
    builds_on=("moe",),
    files=("layers/moe/expert_choice.py",),
    needs={"dovetail.layers.moe:MixtureOfExperts": "there are no experts to choose"},
)
def choosing_experts(config: Any, factor: float = 1.0) -> Any:
    """In training each expert takes the tokens of a row that want it most; so loads are even.

    Tokens count by the router's softmax itself (https://arxiv.org/abs/2202.09368), so the router is
    a plain one. Generation lets tokens choose, since later ones are not there yet.
    """
    from dovetail.layers.moe import MixtureOfExperts, ScoreWeights, TopKRouter, without_balance_loss
    from dovetail.layers.moe.expert_choice import ExpertChoice

    config = replace(config, MixtureOfExperts, without_balance_loss)
    return select(config, MixtureOfExperts).set(
        dispatch=ExpertChoice.Config(factor=factor),
        router=TopKRouter.Config(weights=ScoreWeights.Config()),
    )
