"""Router scores, by which experts are selected, and the weights of the selected experts."""

from __future__ import annotations

from typing import Protocol

import jax

from dovetail.config import Component

# Avoids 0 / 0 where all scores underflow (as in DeepSeek-V3).
_TINY = 1e-20


class RouterScores(Protocol):
    """Maps router logits to the scores by which experts are selected."""

    def __call__(self, logits_BSX: jax.Array, /) -> jax.Array:
        """Maps float32 logits to positive scores."""
        ...


class ExpertWeights(Protocol):
    """Computes the combine weights of the selected experts."""

    def __call__(self, logits_BSK: jax.Array, scores_BSK: jax.Array, /) -> jax.Array:
        """Maps the logits and scores of the selected experts to weights."""
        ...


class SoftmaxScores(Component):
    """Router probabilities: a softmax over all experts (Mixtral, Qwen3-MoE)."""

    def __call__(self, logits_BSX: jax.Array) -> jax.Array:
        """Returns probabilities."""
        return jax.nn.softmax(logits_BSX, axis=-1)


class SigmoidScores(Component):
    """A sigmoid per expert (DeepSeek-V3, https://arxiv.org/abs/2412.19437)."""

    def __call__(self, logits_BSX: jax.Array) -> jax.Array:
        """Returns scores between 0 and 1, which need not sum to 1."""
        return jax.nn.sigmoid(logits_BSX)


class ScoreWeights(Component):
    """The scores themselves; with softmax scores the weights sum to less than 1."""

    def __call__(self, logits_BSK: jax.Array, scores_BSK: jax.Array) -> jax.Array:
        """Returns the scores."""
        return scores_BSK


class NormalizedWeights(Component):
    """The scores of the selected experts, normalized to sum to 1."""

    def __call__(self, logits_BSK: jax.Array, scores_BSK: jax.Array) -> jax.Array:
        """Returns weights whose sum is 1."""
        return scores_BSK / (scores_BSK.sum(axis=-1, keepdims=True) + _TINY)


class SoftmaxWeights(Component):
    """A softmax over the logits of the selected experts (gpt-oss).

    In exact arithmetic it equals `NormalizedWeights` of `SoftmaxScores`, but cannot underflow.
    """

    def __call__(self, logits_BSK: jax.Array, scores_BSK: jax.Array) -> jax.Array:
        """Returns weights whose sum is 1."""
        return jax.nn.softmax(logits_BSK, axis=-1)
