"""Mixture of experts in config.json: what several families share."""

from __future__ import annotations

from typing import Any

from dovetail.layers import FeedForward
from dovetail.layers.moe import LoadBalanceLoss, MixtureOfExperts
from dovetail.models.hf import HFConfig


def softmax_mixture(
    hf: HFConfig, expert: FeedForward.Config, count: int
) -> MixtureOfExperts.Config:
    """Returns experts with softmax routing and the load-balancing loss of config.json."""
    top_k = hf["num_experts_per_tok"]
    # With balanced loads transformers' loss is top_k, ours is 1.
    loss = LoadBalanceLoss.Config(coefficient=hf.get("router_aux_loss_coef", 0.001) * top_k)
    return MixtureOfExperts.Config(
        num_experts=count,
        top_k=top_k,
        expert=expert,
        losses={"balance": loss},
    )


def routing_to_hf(experts: Any) -> dict[str, Any]:
    """Writes top-k and the coefficient of the load-balancing loss."""
    loss = experts.losses.get("balance")
    return {
        "num_experts_per_tok": experts.top_k,
        "router_aux_loss_coef": 0.0 if loss is None else loss.coefficient / experts.top_k,
    }
