"""Score maps and biases: functions of the attention scores before the softmax.

Like masks, they are hashable and hold no arrays, so they are static under `jax.jit`. A kernel maps
one block at a time, and gets the derivative from `jax.vjp`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError


class ScoreMap(ABC):
    """An elementwise function of the scores. Make it a frozen dataclass: it is hashed."""

    @abstractmethod
    def __call__(self, scores: jax.Array, /) -> jax.Array:
        """Returns the mapped scores, in the same shape and dtype (float32)."""


class ScoreBias(ABC):
    """A bias of the scores, by head and by positions of query and key. Make it frozen too.

    It has no gradient.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Registers it as a pytree without leaves."""
        super().__init_subclass__(**options)
        jax.tree_util.register_static(cls)

    @abstractmethod
    def __call__(
        self, heads: jax.Array, q_positions: jax.Array, kv_positions: jax.Array, /
    ) -> jax.Array:
        """Returns the bias (float32); the arguments broadcast together."""


@dataclass(frozen=True)
class SoftCap(ScoreMap):
    """Soft-caps scores to (-cap, cap) by tanh (Gemma 2, https://arxiv.org/abs/2408.00118)."""

    cap: float

    def __post_init__(self) -> None:
        if not 0 < self.cap < math.inf:
            raise ConfigError(
                f"SoftCap: expected a finite cap above 0, got {self.cap}. "
                "For no cap, leave the score map out."
            )

    def __call__(self, scores: jax.Array, /) -> jax.Array:
        """Returns `cap * tanh(scores / cap)`."""
        return self.cap * jnp.tanh(scores / self.cap)
