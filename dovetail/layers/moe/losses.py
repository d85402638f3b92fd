"""Losses of the router. Each is a mean over tokens and over the layers that add it.

They see every token that comes in, padding too: a token map is not told which tokens are padding.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError
from dovetail.layers.moe.router import Routing
from dovetail.module import Module


class RoutingLoss(Protocol):
    """Adds a loss that routing should make small."""

    def __call__(self, routing: Routing, /) -> None:
        """Adds it to the training loss."""
        ...


class WeightedLoss(Module):
    """What the losses below have in common: a coefficient."""

    class Config(Module.Config["WeightedLoss"]):
        """How much it counts beside the main loss."""

        coefficient: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.coefficient < 0:
            raise ConfigError(
                f"{config.locate('coefficient')}: expected 0 or more, got {config.coefficient}."
            )
        self.coefficient = config.coefficient


class LoadBalanceLoss(WeightedLoss):
    """X * sum over experts of f * P: share of the choices times mean score (Switch Transformer).

    Even routing gives 1, all tokens to one expert gives X, for any number of choices. (The function
    of that name in Hugging Face's transformers counts shares of tokens instead: top_k times as
    much.) Shares are taken over the whole micro-batch, on all devices. Scores that do not sum to 1
    are divided by their sum, as in DeepSeek-V3. https://arxiv.org/abs/2101.03961
    """

    class Config(WeightedLoss.Config):
        """Another coefficient."""

        coefficient: float = 0.01

    def __call__(self, routing: Routing) -> None:
        """Adds the loss."""
        scores_BSX, counts_X = routing.scores_BSX, routing.counts_X
        num_experts = scores_BSX.shape[-1]
        tokens = scores_BSX.size // num_experts
        share_X = counts_X / routing.experts_BSK.size
        probability_BSX = scores_BSX / scores_BSX.sum(axis=-1, keepdims=True)
        mean_X = probability_BSX.reshape(-1, num_experts).mean(axis=0)
        unevenness = num_experts * jnp.sum(jax.lax.stop_gradient(share_X) * mean_X)
        self.add_summary("unevenness", unevenness)
        self.add_loss("load_balance", self.coefficient * unevenness * tokens, tokens)


class RouterZLoss(WeightedLoss):
    """The squared log of the softmax's denominator: keeps logits small (ST-MoE).

    https://arxiv.org/abs/2202.08906
    """

    class Config(WeightedLoss.Config):
        """Another coefficient."""

        coefficient: float = 0.001

    def __call__(self, routing: Routing) -> None:
        """Adds the loss."""
        squared_BS = jnp.square(jax.nn.logsumexp(routing.logits_BSX, axis=-1))
        self.add_loss("router_z", self.coefficient * squared_BS.sum(), squared_BS.size)


def without_balance_loss(mixture: Any) -> Any:
    """Returns the config of a mixture whose load something else evens out than a loss."""
    kept = {
        name: loss
        for name, loss in mixture.losses.items()
        if not isinstance(loss, LoadBalanceLoss.Config)
    }
    return mixture.clone(losses=kept)
