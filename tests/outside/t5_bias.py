"""T5's relative bias from outside: a learned bias per head and bucket of the distance.

https://arxiv.org/abs/1910.10683. The first half of the buckets are one distance each, the others
grow logarithmically. T5 has one table for all layers; here every layer has its own.
"""

import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import apply_modifier, modifier, replace
from dovetail.kernels.attention import ScoreBias
from dovetail.layers import Scores
from dovetail.layers.attention.scores import PositionalScores
from dovetail.module import Normal, parameter


@functools.cache
def distance_buckets(num_buckets, max_distance):
    """Returns the bucket of each distance from 0 to `max_distance`; all beyond share the last."""
    exact = num_buckets // 2
    distances = np.arange(max_distance + 1)
    growth = np.log(np.maximum(distances, exact) / exact) / np.log(max_distance / exact)
    # The small term keeps powers such as log(4) / log(16) from falling below their integer.
    far = exact + (growth * (num_buckets - exact) + 1e-9).astype(int)
    return np.where(distances < exact, distances, np.minimum(far, num_buckets - 1))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class T5Bias(ScoreBias, static=False):
    """The bias by bucket; `after` is the first bucket of keys after the query, None for none."""

    table: jax.Array  # [buckets, heads]
    max_distance: int = field(metadata={"static": True})
    after: int | None = field(metadata={"static": True})

    def __call__(self, heads, q_positions, kv_positions, /):
        num_buckets = len(self.table) if self.after is None else self.after
        back = q_positions - kv_positions
        distance = jnp.maximum(back, 0) if self.after is None else jnp.abs(back)
        buckets = jnp.asarray(distance_buckets(num_buckets, self.max_distance))
        bucket = buckets[jnp.minimum(distance, self.max_distance)]
        if self.after is not None:
            bucket += jnp.where(back < 0, self.after, 0)
        return self.table[bucket, heads]


class T5Scores(PositionalScores):
    """Scores with T5's bias of a decoder: a key after the query is in the bucket of distance 0."""

    class Config(PositionalScores.Config):
        """From `max_distance` on, all keys share a bucket."""

        num_buckets: int = 32
        max_distance: int = 128

    def __init__(self, config):
        super().__init__(config)
        self.max_distance, self.after = config.max_distance, None
        shape, init = (config.num_buckets, config.num_heads), Normal.Config(standard_deviation=0.1)
        self.table = parameter(shape, (None, "heads"), init, decays=False)

    def changes(self):
        table = self.table.astype(jnp.float32)
        return {"score_bias": T5Bias(table, self.max_distance, self.after)}


class BidirectionalT5Scores(T5Scores):
    """Scores with T5's bias of an encoder: half of the buckets are for keys after the query."""

    class Config(T5Scores.Config):
        pass

    def __init__(self, config):
        super().__init__(config)
        self.after = config.num_buckets // 2


@modifier("t5-bias")
def t5_bias(config, num_buckets: int = 32, max_distance: int = 128):
    """T5's bias of a decoder, in place of the model's position encoding."""
    return _with_scores(config, T5Scores, num_buckets, max_distance)


@modifier("t5-bias-bidirectional")
def t5_bias_bidirectional(config, num_buckets: int = 32, max_distance: int = 128):
    """T5's bias of an encoder, in place of the model's position encoding."""
    return _with_scores(config, BidirectionalT5Scores, num_buckets, max_distance)


def _with_scores(config, scores, num_buckets, max_distance):
    config = apply_modifier(config, "no-positions")
    new = scores.Config(num_buckets=num_buckets, max_distance=max_distance)
    return replace(config, Scores, new)
