"""A learned vector for each position."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places
from dovetail.layers.positions.input import AnyInputPositions
from dovetail.module import Initializer, Normal, parameter


class LearnedPositions(AnyInputPositions):
    """Adds a learned vector for each position (GPT-2)."""

    class Config(AnyInputPositions.Config):
        """A sequence has at most `length` tokens."""

        length: int = REQUIRED
        weight_init: ConfigOf[Initializer] = Normal.Config(standard_deviation=0.01)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "length")
        self.weight = parameter((config.length, config.width), (None, "embed"), config.weight_init)

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Adds the vector of each position; one beyond the table gives NaN, never a wrong one."""
        vectors = jnp.take(self.weight, places.positions_BS, axis=0, mode="fill")
        return x_BSE + vectors.astype(x_BSE.dtype)
