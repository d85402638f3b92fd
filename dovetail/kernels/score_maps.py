"""Score maps and biases: what is done to each score before the softmax, as small static objects.

Like masks, they are hashable and hold no arrays, so they are static under `jax.jit`. A kernel maps
a block at a time, and asks `jax.vjp` for the derivative there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError


class ScoreMap(ABC):
    """A function of one score, applied to each alone. Make it a frozen dataclass: it is hashed."""

    @abstractmethod
    def __call__(self, scores: jax.Array, /) -> jax.Array:
        """Returns the mapped scores, in the same shape and dtype (float32)."""


class ScoreBias(ABC):
    """What is added to a score, by its head and by where query and key stand. Make it frozen too.

    It has no gradient.
    """

    @abstractmethod
    def __call__(
        self, heads: jax.Array, query_positions: jax.Array, key_positions: jax.Array, /
    ) -> jax.Array:
        """Returns what is added (float32); the arguments broadcast together."""


@dataclass(frozen=True)
class SoftCap(ScoreMap):
    """Keeps scores between -cap and cap, smoothly (Gemma 2, https://arxiv.org/abs/2408.00118)."""

    cap: float

    def __post_init__(self) -> None:
        """Refuses a cap that leaves nothing, or that is none."""
        if not 0 < self.cap < math.inf:
            raise ConfigError(
                f"SoftCap: expected a finite cap above 0, got {self.cap}. "
                "For no cap, leave the score map out."
            )

    def __call__(self, scores: jax.Array, /) -> jax.Array:
        """Bends large scores towards the cap; small ones stay nearly as they are."""
        return self.cap * jnp.tanh(scores / self.cap)
