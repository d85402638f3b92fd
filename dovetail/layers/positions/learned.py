"""Learned absolute position embeddings."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext
from dovetail.layers.positions.base import BaseInputPositions
from dovetail.module import Initializer, Normal, parameter


class LearnedPositions(BaseInputPositions):
    """Adds a learned embedding of the position to each token (GPT-2)."""

    class Config(BaseInputPositions.Config):
        """A sequence has at most `length` tokens."""

        length: int = REQUIRED
        weight_init: ConfigOf[Initializer] = Normal.Config(standard_deviation=0.01)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "length")
        self.weight = parameter((config.length, config.width), (None, "embed"), config.weight_init)

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        """Adds the position embeddings; a position beyond the table gives NaN."""
        vectors = jnp.take(self.weight, context.positions_BS, axis=0, mode="fill")
        return x_BSE + vectors.astype(x_BSE.dtype)
