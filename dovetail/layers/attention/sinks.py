"""Attention sinks: a place for attention to go when no token deserves it."""

from __future__ import annotations

from typing import Any

from dovetail.config import ConfigOf
from dovetail.layers.attention.scores import ChangedScores
from dovetail.module import Initializer, Normal, parameter


class LearnedSinks(ChangedScores):
    """A learned logit for each head (gpt-oss; https://arxiv.org/abs/2309.17453)."""

    class Config(ChangedScores.Config):
        """How the logits begin."""

        weight_init: ConfigOf[Initializer] = Normal.Config(standard_deviation=0.02)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.sinks = parameter((config.num_heads,), ("heads",), config.weight_init, decays=False)

    def changes(self) -> dict[str, Any]:
        """Gives the softmax a logit a head."""
        return {"sinks_H": self.sinks}
