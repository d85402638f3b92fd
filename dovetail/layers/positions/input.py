"""Positions that are added to the vectors of tokens, before the first layer."""

from __future__ import annotations

from typing import Protocol

import jax

from dovetail.config import REQUIRED
from dovetail.layers.interfaces import Places
from dovetail.module import Module


class InputPositions(Protocol):
    """Tells the vectors of tokens where they stand."""

    def __call__(self, x_BSE: jax.Array, places: Places, /) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        ...


class AnyInputPositions(Module):
    """What they have in common: `replace(config, AnyInputPositions, ...)` finds them all."""

    class Config(Module.Config["AnyInputPositions"]):
        """The width is set by the parent."""

        width: int = REQUIRED


class NoInputPositions(AnyInputPositions):
    """Adds nothing: the layers know positions by themselves."""

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Returns what came in."""
        return x_BSE
