"""What families with experts share."""

from __future__ import annotations

from typing import Any

from dovetail.layers import FeedForward
from dovetail.layers.moe import LoadBalanceLoss, MixtureOfExperts
from dovetail.models.hub import HubConfig


def mixture(hub: HubConfig, expert: FeedForward.Config, count: int) -> MixtureOfExperts.Config:
    """Returns experts chosen by a softmax, with the balance loss that config.json asks for."""
    top_k = hub["num_experts_per_tok"]
    # Theirs counts each of a token's choices as a whole, so that even loads give top_k, ours 1.
    loss = LoadBalanceLoss.Config(coefficient=hub.get("router_aux_loss_coef", 0.001) * top_k)
    return MixtureOfExperts.Config(
        num_experts=count,
        top_k=top_k,
        expert=expert,
        losses={"balance": loss},
    )


def routing_to_hf(experts: Any) -> dict[str, Any]:
    """Writes how many experts a token visits, and the weight of the balance loss."""
    loss = experts.losses.get("balance")
    return {
        "num_experts_per_tok": experts.top_k,
        "router_aux_loss_coef": 0.0 if loss is None else loss.coefficient / experts.top_k,
    }
