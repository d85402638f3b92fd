"""The router: selects experts for each token, and computes their weights."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.interfaces import PrecisionSensitive, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.moe.scoring import (
    ExpertWeights,
    NormalizedWeights,
    RouterScores,
    SoftmaxScores,
)
from dovetail.layers.moe.selection import (
    ExpertSelection,
    NoSelectionBias,
    SelectionBias,
    TopKSelection,
)
from dovetail.module import Module
from dovetail.parallel import tag


class Routing(NamedTuple):
    """The output of a router.

    Attributes:
        experts_BSK: the selected experts of each token (int32).
        weights_BSK: their combine weights (float32).
        logits_BSX: the router logits (float32).
        scores_BSX: the router probabilities, or other scores, without the selection bias (float32).
        counts_X: the load of each expert, in tokens (int32).
    """

    experts_BSK: jax.Array
    weights_BSK: jax.Array
    logits_BSX: jax.Array
    scores_BSX: jax.Array
    counts_X: jax.Array


class Router(Protocol):
    """Selects experts for each token."""

    def __call__(self, x_BSE: jax.Array, /) -> Routing:
        """Routes [B, S, E]."""
        ...


class TopKRouter(PrecisionSensitive, Module):
    """Logits, scores, selection by (biased) scores, and weights; all in float32.

    Published routers differ in `scores`, `weights`, `selection` and `bias`:
    Mixtral and Qwen3-MoE are the defaults (Qwen3-MoE without normalization: ScoreWeights);
    gpt-oss has SoftmaxWeights and a projection with bias; DeepSeek-V3 has SigmoidScores,
    GroupLimitedSelection, LossFreeBias and a `scaling` of 2.5.
    """

    class Config(Module.Config["TopKRouter"]):
        """Width, `num_experts` and `top_k` are set by the parent.

        The weights are multiplied by `scaling`.
        """

        width: int = REQUIRED
        num_experts: int = REQUIRED
        top_k: int = REQUIRED
        projection: ConfigOf[TokenMap] = Linear.Config(dtype="float32")
        scores: ConfigOf[RouterScores] = SoftmaxScores.Config()
        bias: ConfigOf[SelectionBias] = NoSelectionBias.Config()
        selection: ConfigOf[ExpertSelection] = TopKSelection.Config()
        weights: ConfigOf[ExpertWeights] = NormalizedWeights.Config()
        scaling: float = 1.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.num_experts, self.scaling = config.num_experts, config.scaling
        sizes = {"num_experts": config.num_experts, "top_k": config.top_k}
        self.selection = config.selection.build(**sizes)
        self.bias = config.bias.build(num_experts=config.num_experts)
        self.scores, self.weights = config.scores.build(), config.weights.build()
        # Every device needs the logits of all experts, so their axis is replicated.
        self.projection = config.projection.build(
            in_features=config.width, in_axis="embed", out_features=config.num_experts
        )

    def __call__(self, x_BSE: jax.Array) -> Routing:
        """Routes [B, S, E]."""
        logits_BSX = self.projection(x_BSE.astype(jnp.float32)).astype(jnp.float32)
        logits_BSX = tag(logits_BSX, "router_logits")
        scores_BSX = self.scores(logits_BSX)
        # The selection has no gradient; the weights have.
        experts_BSK = self.selection(jax.lax.stop_gradient(self.bias(scores_BSX)))
        weights_BSK = self.weights(
            jnp.take_along_axis(logits_BSX, experts_BSK, axis=-1),
            jnp.take_along_axis(scores_BSX, experts_BSK, axis=-1),
        )
        counts_X = jnp.bincount(experts_BSK.reshape(-1), length=self.num_experts)
        if self.training:
            self.bias.update(counts_X)
        return Routing(experts_BSK, self.scaling * weights_BSK, logits_BSX, scores_BSX, counts_X)
