"""Sigmoid attention: each key has its weight by itself, and they need not add up to 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax

from dovetail.kernels.attention import ScoreMap
from dovetail.layers.attention.scores import ChangedScores
from dovetail.layers.checks import require_positive


@dataclass(frozen=True)
class ShiftedSigmoid(ScoreMap):
    """The sigmoid of a score and a shift."""

    shift: float

    def __call__(self, scores: jax.Array, /) -> jax.Array:
        """Returns weights between 0 and 1."""
        return jax.nn.sigmoid(scores + self.shift)


class SigmoidAttention(ChangedScores):
    """Weights by a sigmoid, in the place of the softmax (https://arxiv.org/abs/2409.04431).

    Shifted by the log of the sequence's length, so that at first the weights of a whole sequence
    add up to about 1, as those of a softmax do.
    """

    class Config(ChangedScores.Config):
        """The length that the shift is made for: that of training."""

        length: int = 2048

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "length")
        self.weigh = ShiftedSigmoid(-math.log(config.length))

    def changes(self) -> dict[str, Any]:
        """Weighs each key alone."""
        return {"weigh": self.weigh}
