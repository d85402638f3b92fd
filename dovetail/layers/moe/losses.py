"""Router losses: load balancing and z-loss. Each is a mean over tokens and layers.

They include padding, because a token map does not know which tokens are padding.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError
from dovetail.layers.moe.router import Routing
from dovetail.module import Module


class RoutingLoss(Protocol):
    """An auxiliary loss of the router."""

    def __call__(self, routing: Routing, /) -> None:
        """Adds it to the training loss."""
        ...


class WeightedLoss(Module):
    """The base of router losses."""

    class Config(Module.Config["WeightedLoss"]):
        """The weight relative to the main loss."""

        coefficient: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.coefficient < 0:
            raise ConfigError(
                f"{config.locate('coefficient')}: expected 0 or more, got {config.coefficient}."
            )
        self.coefficient = config.coefficient


class LoadBalanceLoss(WeightedLoss):
    """The load-balancing loss of Switch Transformer (https://arxiv.org/abs/2101.03961).

    X * sum over experts of f * P: f is the fraction of selections, P the mean router probability.
    Even routing gives 1, and all tokens to one expert gives X, for any top_k. (In Hugging Face's
    transformers f is the fraction of tokens, so the loss is top_k times as large.) Both are over
    the global microbatch. Scores that do not sum to 1 are normalized, as in DeepSeek-V3.
    """

    class Config(WeightedLoss.Config):
        coefficient: float = 0.01

    def __call__(self, routing: Routing) -> None:
        """Adds the loss."""
        scores_BSX, counts_X = routing.scores_BSX, routing.counts_X
        num_experts = scores_BSX.shape[-1]
        tokens = scores_BSX.size // num_experts
        fraction_X = counts_X / routing.experts_BSK.size
        probs_BSX = scores_BSX / scores_BSX.sum(axis=-1, keepdims=True)
        mean_X = probs_BSX.reshape(-1, num_experts).mean(axis=0)
        unevenness = num_experts * jnp.sum(jax.lax.stop_gradient(fraction_X) * mean_X)
        self.add_summary("unevenness", unevenness)
        self.add_loss("load_balance", self.coefficient * unevenness * tokens, tokens)


class RouterZLoss(WeightedLoss):
    """Router z-loss: the squared logsumexp of the router logits (https://arxiv.org/abs/2202.08906)."""

    class Config(WeightedLoss.Config):
        coefficient: float = 0.001

    def __call__(self, routing: Routing) -> None:
        """Adds the loss."""
        squared_BS = jnp.square(jax.nn.logsumexp(routing.logits_BSX, axis=-1))
        self.add_loss("router_z", self.coefficient * squared_BS.sum(), squared_BS.size)


def without_balance_loss(mixture: Any) -> Any:
    """Returns the config of a mixture without its load-balancing loss."""
    losses = {
        name: loss
        for name, loss in mixture.losses.items()
        if not isinstance(loss, LoadBalanceLoss.Config)
    }
    return mixture.clone(losses=losses)
