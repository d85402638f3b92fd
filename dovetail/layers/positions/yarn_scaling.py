"""YaRN: a scaling of rotary frequencies that also sharpens attention."""

from __future__ import annotations

import math

import numpy as np

from dovetail.config import REQUIRED, Part
from dovetail.layers.positions.scaling import stretch


class YarnScaling(Part):
    """YaRN: stretches slow pairs, keeps fast ones, and sharpens attention (https://arxiv.org/abs/2309.00071)."""

    class Config(Part.Config["YarnScaling"]):
        """By how much, and between how many turns within the original length it is blended.

        `magnitude` is what rotated features are multiplied with; None means the paper's rule.
        With `truncate` the blend begins and ends at whole pairs.
        """

        factor: float = REQUIRED
        original_length: int = REQUIRED
        fast_turns: float = 32.0
        slow_turns: float = 1.0
        magnitude: float | None = None
        truncate: bool = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = stretch(config)
        given = config.magnitude
        self.magnitude = yarn_magnitude(self.factor) if given is None else given

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Blends stretched and original frequencies by the index of the pair."""
        first, last = (
            self._pair(turns, len(frequencies), base)
            for turns in (self.config.fast_turns, self.config.slow_turns)
        )
        if self.config.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * len(frequencies) - 1)
        steps = (np.arange(len(frequencies)) - first) / max(last - first, 0.001)
        stretched = np.clip(steps, 0.0, 1.0)
        return stretched * frequencies / self.factor + (1 - stretched) * frequencies

    def _pair(self, turns: float, pairs: int, base: float) -> float:
        """Returns the index of the pair that turns so often within the original length."""
        length = self.config.original_length / (turns * 2 * math.pi)
        return pairs * math.log(length) / math.log(base)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Returns YaRN's rule for the magnitude: it grows with the log of the stretch."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
