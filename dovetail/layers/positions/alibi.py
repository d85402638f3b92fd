"""ALiBi: a score bias linear in the distance, with one slope per head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.kernels.attention import ScoreBias
from dovetail.layers.attention.scores import PositionalScores


@dataclass(frozen=True)
class LinearBias(ScoreBias):
    """The bias -slope * distance (https://arxiv.org/abs/2108.12409)."""

    slopes: tuple[float, ...]

    def __call__(
        self, heads: jax.Array, query_positions: jax.Array, key_positions: jax.Array, /
    ) -> jax.Array:
        """Returns the bias: 0 at the query's own position, negative on both sides."""
        slopes = jnp.asarray(np.asarray(self.slopes, np.float32))[heads]
        return -slopes * jnp.abs(query_positions - key_positions)


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Returns the slopes of the paper: a geometric series from 2^(-8/n) to 2^-8.

    If the number of heads is not a power of two, take the series of the power below it, and the
    rest from every second slope of the power above, as the authors' code does.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    finer = [2.0 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return tuple(slopes + finer[: num_heads - power])


class Alibi(PositionalScores):
    """Scores with the ALiBi bias, in place of a position encoding of queries and keys."""

    def __init__(self, config: Alibi.Config) -> None:
        super().__init__(config)
        self.score_bias = LinearBias(alibi_slopes(config.num_heads))

    def changes(self) -> dict[str, Any]:
        """Sets the score bias."""
        return {"score_bias": self.score_bias}
