"""Positions that are added to the vectors of tokens, before the first layer."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places
from dovetail.module import Initializer, Module, Normal, parameter


class InputPositions(Protocol):
    """Tells the vectors of tokens where they stand."""

    def __call__(self, x_BSE: jax.Array, places: Places, /) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        ...


class NoInputPositions(Module):
    """Adds nothing: the layers know positions by themselves."""

    class Config(Module.Config["NoInputPositions"]):
        """The width is set by the parent, and not used."""

        width: int = REQUIRED

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Returns what came in."""
        return x_BSE


class LearnedPositions(Module):
    """Adds a learned vector for each position (GPT-2)."""

    class Config(Module.Config["LearnedPositions"]):
        """The width is set by the parent; a sequence has at most `length` tokens."""

        width: int = REQUIRED
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
