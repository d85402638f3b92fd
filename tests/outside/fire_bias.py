"""FIRE from outside: a learned bias by distance that generalizes to longer sequences.

https://arxiv.org/abs/2310.04418. The bias of a query at i and a key at j is an MLP of
psi(|i - j|) / psi(max(i, length)), where psi(x) = log(1 + slope * x). Slope, length and MLP are
learned, here by every layer for itself.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dovetail.config import apply_modifier, replace
from dovetail.features import feature
from dovetail.kernels.attention import ScoreBias
from dovetail.layers import Scores
from dovetail.layers.attention.scores import PositionalScores
from dovetail.module import ConstantInitializer, Normal, parameter


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FireBias(ScoreBias, static=False):
    """The bias, as a function of these arrays. Logarithms keep slope and length positive."""

    log_slope: jax.Array  # []
    log_length: jax.Array  # []
    inner: jax.Array  # [2, hidden]: weights and biases
    outer: jax.Array  # [hidden, heads]

    def __call__(self, heads, q_positions, kv_positions, /):
        slope, length = jnp.exp(self.log_slope), jnp.exp(self.log_length)
        distance = jnp.log1p(slope * jnp.abs(q_positions - kv_positions))
        ratio = distance / jnp.log1p(slope * jnp.maximum(q_positions, length))
        hidden = jax.nn.relu(ratio[..., None] * self.inner[0] + self.inner[1])
        return (hidden * self.outer.T[heads]).sum(axis=-1)


class FireScores(PositionalScores):
    """Scores with the FIRE bias, in place of a position encoding of queries and keys."""

    class Config(PositionalScores.Config):
        """The hidden width of the MLP, and the initial slope and length."""

        hidden: int = 32
        slope: float = 0.1
        length: float = 512.0

    def __init__(self, config):
        super().__init__(config)
        for name in ("slope", "length"):
            init = ConstantInitializer.Config(value=math.log(getattr(config, name)))
            setattr(self, f"log_{name}", parameter((), (), init, decays=False))
        inner, outer = (2, config.hidden), (config.hidden, config.num_heads)
        init = Normal.Config(standard_deviation=1.0)
        self.inner = parameter(inner, (None, None), init, decays=False)
        init = Normal.Config(standard_deviation=config.hidden**-0.5)
        self.outer = parameter(outer, (None, "heads"), init, decays=False)

    def changes(self):
        arrays = (self.log_slope, self.log_length, self.inner, self.outer)
        return {"score_bias": FireBias(*(array.astype(jnp.float32) for array in arrays))}


@feature(
    "fire",
    kind="positions",
    needs={"dovetail.layers:Scores": "there are no attention scores to bias"},
    trials=({"length": 16.0},),
)
def fire(config, hidden: int = 32, length: float = 512.0):
    """FIRE in place of the model's position encoding."""
    config = apply_modifier(config, "no-positions")
    return replace(config, Scores, FireScores.Config(hidden=hidden, length=length))
