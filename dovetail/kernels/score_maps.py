"""Score maps and biases: functions of the attention scores before the softmax.

Like masks, they are hashable and hold no arrays, so they are static under `jax.jit`; but a bias may
hold arrays. A kernel maps one block at a time, and gets the derivative from `jax.vjp`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
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

    It must be finite at all positions, masked pairs included. A bias without arrays is static, like
    a score map. A learned one is a pytree of float arrays (such as a table of buckets and heads),
    and attention returns their gradients:

        @jax.tree_util.register_dataclass
        @dataclass(frozen=True)
        class BucketBias(ScoreBias, static=False): ...
    """

    def __init_subclass__(cls, static: bool = True, **options: Any) -> None:
        """Registers a static bias as a pytree without leaves."""
        super().__init_subclass__(**options)
        if static:
            jax.tree_util.register_static(cls)

    @abstractmethod
    def __call__(
        self, heads: jax.Array, q_positions: jax.Array, kv_positions: jax.Array, /
    ) -> jax.Array:
        """Returns the bias (float32); the arguments broadcast together."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShardedHeadsBias(ScoreBias, static=False):
    """The bias on a device that has a shard of the heads, inside of a `shard_map`.

    Attributes:
        base: takes the indices of heads among all heads.
        axes: the mesh axes that shard the heads.
        heads: the heads of a device.
    """

    base: ScoreBias
    axes: tuple[str, ...] = field(metadata={"static": True})
    heads: int = field(metadata={"static": True})

    def __call__(
        self, heads: jax.Array, q_positions: jax.Array, kv_positions: jax.Array, /
    ) -> jax.Array:
        """Returns the bias of the device's own heads."""
        first = jax.lax.axis_index(self.axes) * self.heads
        return self.base(first + heads, q_positions, kv_positions)


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
