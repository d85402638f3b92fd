"""The router: for each token, which experts and with what weights. Every step of it is a child."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.interfaces import Exact, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.moe.balancing import NoBias, SelectionBias
from dovetail.layers.moe.scoring import ChoiceWeights, NormalizedWeights, Scores, SoftmaxScores
from dovetail.layers.moe.selection import Selection, TopExperts
from dovetail.module import Module
from dovetail.parallel import tag


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
        experts_BSK: the chosen experts of each token (int32).
        weights_BSK: how much each counts (float32).
        logits_BSX: what the router thinks of all experts (float32).
        scores_BSX: by what it chose, without the bias (float32).
        counts_X: how many choices fell on each expert (int32).
    """

    experts_BSK: jax.Array
    weights_BSK: jax.Array
    logits_BSX: jax.Array
    scores_BSX: jax.Array
    counts_X: jax.Array


class Router(Protocol):
    """Chooses experts for each token."""

    def __call__(self, x_BSE: jax.Array, /) -> Routing:
        """Routes [B, S, E]."""
        ...


class TopKRouter(Exact, Module):
    """A linear map to logits, scores, a choice by (biased) scores, weights. All in float32.

    The published routers, with `scores`, `weights`, `selection` and `bias` swapped:
    Mixtral and Qwen3-MoE are the defaults (Qwen3-MoE without normalisation: ScoreWeights);
    gpt-oss has SoftmaxWeights and a projection with bias; DeepSeek-V3 has SigmoidScores,
    GroupedTopExperts, LossFreeBias and a `scaling` of 2.5.
    """

    class Config(Module.Config["TopKRouter"]):
        """Width, number of experts and of choices are set by the parent.

        The weights are multiplied by `scaling`.
        """

        width: int = REQUIRED
        num_experts: int = REQUIRED
        top_k: int = REQUIRED
        projection: ConfigOf[TokenMap] = Linear.Config(dtype="float32")
        scores: ConfigOf[Scores] = SoftmaxScores.Config()
        bias: ConfigOf[SelectionBias] = NoBias.Config()
        selection: ConfigOf[Selection] = TopExperts.Config()
        weights: ConfigOf[ChoiceWeights] = NormalizedWeights.Config()
        scaling: float = 1.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.num_experts, self.scaling = config.num_experts, config.scaling
        sizes = {"num_experts": config.num_experts, "top_k": config.top_k}
        self.selection = config.selection.build(**sizes)
        self.bias = config.bias.build(num_experts=config.num_experts)
        self.scores, self.weights = config.scores.build(), config.weights.build()
        # The logits of all experts are needed everywhere, so their axis is never split.
        self.projection = config.projection.build(
            in_features=config.width, in_axis="embed", out_features=config.num_experts
        )

    def __call__(self, x_BSE: jax.Array) -> Routing:
        """Routes [B, S, E]."""
        logits_BSX = self.projection(x_BSE.astype(jnp.float32)).astype(jnp.float32)
        logits_BSX = tag(logits_BSX, "router_logits")
        scores_BSX = self.scores(logits_BSX)
        # The choice has no derivative; the weights of what was chosen have.
        experts_BSK = self.selection(jax.lax.stop_gradient(self.bias(scores_BSX)))
        weights_BSK = self.weights(
            jnp.take_along_axis(logits_BSX, experts_BSK, axis=-1),
            jnp.take_along_axis(scores_BSX, experts_BSK, axis=-1),
        )
        counts_X = jnp.bincount(experts_BSK.reshape(-1), length=self.num_experts)
        if self.training:
            self.bias.learn(counts_X)
        return Routing(experts_BSK, self.scaling * weights_BSK, logits_BSX, scores_BSX, counts_X)
