"""From logits to scores, by which experts are chosen, and to the weights of those chosen."""

from __future__ import annotations

from typing import Protocol

import jax

from dovetail.config import Part

# So small that it matters only where every score is zero (DeepSeek-V3 has the same).
_TINY = 1e-20


class Scores(Protocol):
    """Says how much a token wants each expert; experts are chosen by it."""

    def __call__(self, logits_BSX: jax.Array, /) -> jax.Array:
        """Maps float32 logits to scores, all of them above 0."""
        ...


class ChoiceWeights(Protocol):
    """Says how much each chosen expert counts in the result."""

    def __call__(self, logits_BSK: jax.Array, scores_BSK: jax.Array, /) -> jax.Array:
        """Maps the logits and scores of the chosen experts to weights."""
        ...


class SoftmaxScores(Part):
    """Experts compete: a softmax over all of them (Mixtral, Qwen3-MoE)."""

    def __call__(self, logits_BSX: jax.Array) -> jax.Array:
        """Returns probabilities."""
        return jax.nn.softmax(logits_BSX, axis=-1)


class SigmoidScores(Part):
    """Each expert on its own (DeepSeek-V3, https://arxiv.org/abs/2412.19437)."""

    def __call__(self, logits_BSX: jax.Array) -> jax.Array:
        """Returns numbers between 0 and 1, whose sum is free."""
        return jax.nn.sigmoid(logits_BSX)


class ScoreWeights(Part):
    """The scores themselves, so that the chosen experts count for less than 1 together."""

    def __call__(self, logits_BSK: jax.Array, scores_BSK: jax.Array) -> jax.Array:
        """Returns the scores."""
        return scores_BSK


class NormalizedWeights(Part):
    """The scores of the chosen experts, divided by their sum."""

    def __call__(self, logits_BSK: jax.Array, scores_BSK: jax.Array) -> jax.Array:
        """Returns weights whose sum is 1."""
        return scores_BSK / (scores_BSK.sum(axis=-1, keepdims=True) + _TINY)


class SoftmaxWeights(Part):
    """A softmax over the logits of the chosen experts alone (gpt-oss).

    In exact arithmetic that is `NormalizedWeights` of `SoftmaxScores`, and it cannot underflow.
    """

    def __call__(self, logits_BSK: jax.Array, scores_BSK: jax.Array) -> jax.Array:
        """Returns weights whose sum is 1."""
        return jax.nn.softmax(logits_BSK, axis=-1)
