"""Attention sinks: a place for attention to go when no token deserves it."""

from __future__ import annotations

from typing import Protocol

import jax

from dovetail.config import REQUIRED, ConfigOf
from dovetail.module import Initializer, Module, Normal, parameter


class Sinks(Protocol):
    """Gives each head a logit that takes part in its softmax, and leads to no token."""

    def __call__(self) -> jax.Array | None:
        """Returns one logit a head, or None."""
        ...


class NoSinks(Module):
    """Every share of attention goes to a token."""

    class Config(Module.Config["NoSinks"]):
        """The number of heads is set by the parent, and not used."""

        num_heads: int = REQUIRED

    def __call__(self) -> None:
        """Returns nothing."""
        return


class LearnedSinks(Module):
    """A learned logit for each head (gpt-oss; https://arxiv.org/abs/2309.17453)."""

    class Config(Module.Config["LearnedSinks"]):
        """The number of heads is set by the parent."""

        num_heads: int = REQUIRED
        weight_init: ConfigOf[Initializer] = Normal.Config(standard_deviation=0.02)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.weight = parameter((config.num_heads,), ("heads",), config.weight_init, decays=False)

    def __call__(self) -> jax.Array:
        """Returns the logits [H]."""
        return self.weight
