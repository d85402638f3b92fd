"""The scaling of rotary frequencies that Llama 3.1 was stretched with."""

from __future__ import annotations

import math

import numpy as np

from dovetail.config import REQUIRED, Part
from dovetail.layers.positions.scaling import stretch


class Llama3Scaling(Part):
    """Stretches pairs that turn slowly, leaves fast ones, and blends between (Llama 3.1)."""

    magnitude = 1.0

    class Config(Part.Config["Llama3Scaling"]):
        """By how much, and between which wavelengths (as parts of the original length)."""

        factor: float = REQUIRED
        original_length: int = REQUIRED
        low_frequency_factor: float = 1.0
        high_frequency_factor: float = 4.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor, self.length = stretch(config), config.original_length
        self.low, self.high = config.low_frequency_factor, config.high_frequency_factor

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Blends by how often a pair turns within the original length."""
        turns = self.length * frequencies / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return (1 - kept) * frequencies / self.factor + kept * frequencies
