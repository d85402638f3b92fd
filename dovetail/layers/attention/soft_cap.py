"""Soft-capped scores: no score of attention grows beyond a bound."""

from __future__ import annotations

from typing import Any

from dovetail.config import REQUIRED
from dovetail.kernels.attention import SoftCap
from dovetail.layers.attention.scores import ChangedScores


class SoftCappedScores(ChangedScores):
    """Scores between -cap and cap (Gemma 2, https://arxiv.org/abs/2408.00118)."""

    class Config(ChangedScores.Config):
        """The bound."""

        cap: float = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.score_map = SoftCap(config.cap)

    def changes(self) -> dict[str, Any]:
        """Bends large scores."""
        return {"score_map": self.score_map}
