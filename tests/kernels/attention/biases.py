"""Score biases that the tests share: learned ones, and a static one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dovetail.kernels.attention import ScoreBias


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BucketBias(ScoreBias, static=False):
    """T5: a table of buckets of the distance, logarithmic from `exact` on."""

    table: jax.Array  # [buckets, heads]
    exact: int = dataclasses.field(default=4, metadata={"static": True})

    def __call__(
        self, heads: jax.Array, q_positions: jax.Array, kv_positions: jax.Array, /
    ) -> jax.Array:
        distance = jnp.abs(q_positions - kv_positions)
        far = self.exact + jnp.log2(jnp.maximum(distance, self.exact) / self.exact).astype(int)
        bucket = jnp.where(distance < self.exact, distance, far)
        return self.table[jnp.minimum(bucket, len(self.table) - 1), heads].astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MLPBias(ScoreBias, static=False):
    """FIRE: an MLP of the distance over the position of the query, both through a logarithm."""

    scale: jax.Array  # []
    inner: jax.Array  # [2, hidden]: weights and biases
    outer: jax.Array  # [hidden, heads]

    def __call__(
        self, heads: jax.Array, q_positions: jax.Array, kv_positions: jax.Array, /
    ) -> jax.Array:
        distance = jnp.log1p(self.scale * jnp.abs(q_positions - kv_positions))
        ratio = distance / jnp.log1p(self.scale * jnp.maximum(q_positions, 8))
        hidden = jnp.tanh(ratio[..., None] * self.inner[0] + self.inner[1])
        return (hidden * self.outer.T[heads]).sum(axis=-1)


@dataclass(frozen=True)
class Slope(ScoreBias):
    """A static bias: a slope for each head."""

    def __call__(
        self, heads: jax.Array, q_positions: jax.Array, kv_positions: jax.Array, /
    ) -> jax.Array:
        return -0.1 * (1 + heads) * jnp.abs(q_positions - kv_positions)
