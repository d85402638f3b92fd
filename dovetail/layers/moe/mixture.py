"""Mixture of experts: each token uses a few of many feed-forward layers."""

from __future__ import annotations

from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigOf, wraps
from dovetail.layers.feed_forward import FeedForward
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.moe.dispatch import Dispatch
from dovetail.layers.moe.dropless import Dropless
from dovetail.layers.moe.losses import LoadBalanceLoss, RoutingLoss
from dovetail.layers.moe.router import Router, Routing, TopKRouter
from dovetail.layers.moe.selection import require_top_k
from dovetail.module import Maximum, Module, repeated
from dovetail.parallel import tag


class MixtureOfExperts(Module):
    """Routes each token to `top_k` experts, and to the shared expert if there is one.

    It wraps any token map as its expert. The expert keeps its parameter paths, with a leading axis:
    `feed_forward/gate/weight` is [X, E, F].
    """

    class Config(Module.Config["MixtureOfExperts"]):
        """The width is set by the parent. `losses` are added in training only."""

        width: int = REQUIRED
        num_experts: int = REQUIRED
        top_k: int = REQUIRED
        expert: ConfigOf[TokenMap] = wraps(FeedForward.Config())
        router: ConfigOf[Router] = TopKRouter.Config()
        dispatch: ConfigOf[Dispatch] = Dropless.Config()
        shared: ConfigOf[TokenMap] | None = None
        losses: dict[str, ConfigOf[RoutingLoss]] = {"balance": LoadBalanceLoss.Config()}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_top_k(config)
        sizes = {"num_experts": config.num_experts, "top_k": config.top_k}
        expert: Any = config.expert.build(width=config.width)  # a TokenMap and a Module
        self.expert = repeated(expert, config.num_experts, "expert", active=config.top_k)
        self.router = config.router.build(width=config.width, **sizes)
        self.dispatch = config.dispatch.build()
        self.shared = None if config.shared is None else config.shared.build(width=config.width)
        self.losses = {name: loss.build() for name, loss in config.losses.items()}

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        routing = self.router(x_BSE)
        if self.training:
            for loss in self.losses.values():
                loss(routing)
        result = self.dispatch(self.expert, x_BSE, routing)
        self._summarize(routing, result.summaries)
        output_BSE = tag(result.output_BSE, "mixture_output")
        return output_BSE if self.shared is None else output_BSE + self.shared(x_BSE)

    def _summarize(self, routing: Routing, summaries: dict[str, Any]) -> None:
        """Logs the load of the busiest expert, as a multiple of the mean load."""
        busiest = routing.counts_X.max() / routing.counts_X.mean()
        self.add_summary("busiest_expert", Maximum(busiest))
        for name, value in summaries.items():
            self.add_summary(name, value)
