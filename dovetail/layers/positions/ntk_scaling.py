"""NTK-aware scaling of rotary frequencies."""

from __future__ import annotations

import numpy as np

from dovetail.config import REQUIRED, Part
from dovetail.layers.positions.scaling import stretch


class NtkScaling(Part):
    """Raises the base, so that slow pairs are stretched and fast ones hardly ("NTK-aware")."""

    magnitude = 1.0

    class Config(Part.Config["NtkScaling"]):
        """By how much the slowest pair is stretched."""

        factor: float = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = stretch(config)

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Returns the frequencies of the raised base."""
        pairs = len(frequencies)
        return frequencies * self.factor ** -(np.arange(pairs) / max(pairs - 1, 1))
