"""Linear scaling of rotary frequencies."""

from __future__ import annotations

import numpy as np

from dovetail.config import REQUIRED, Part
from dovetail.layers.positions.scaling import stretch


class LinearScaling(Part):
    """Stretches all positions alike (https://arxiv.org/abs/2306.15595)."""

    magnitude = 1.0

    class Config(Part.Config["LinearScaling"]):
        """By how much."""

        factor: float = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = stretch(config)

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Slows every pair down."""
        return frequencies / self.factor
