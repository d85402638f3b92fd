"""Scalings of rotary frequencies: how a model is stretched to sequences longer than it has seen.

Each takes the frequencies of all pairs, fastest first, and returns new ones. They are constants of
the model, computed in double precision.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from dovetail.config import REQUIRED, ConfigError, Part


class FrequencyScaling(Protocol):
    """Changes the frequencies of a rotary embedding."""

    magnitude: float
    """What rotated features are multiplied with."""

    def scaled(self, frequencies: np.ndarray, base: float, /) -> np.ndarray:
        """Returns the new frequencies."""
        ...


class NoScaling(Part):
    """Leaves frequencies as they are."""

    magnitude = 1.0

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Returns what came in."""
        return frequencies


class LinearScaling(Part):
    """Stretches all positions alike (https://arxiv.org/abs/2306.15595)."""

    magnitude = 1.0

    class Config(Part.Config["LinearScaling"]):
        """By how much."""

        factor: float = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = _stretch(config)

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Slows every pair down."""
        return frequencies / self.factor


class NtkScaling(Part):
    """Raises the base, so that slow pairs are stretched and fast ones hardly ("NTK-aware")."""

    magnitude = 1.0

    class Config(Part.Config["NtkScaling"]):
        """By how much the slowest pair is stretched."""

        factor: float = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = _stretch(config)

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Returns the frequencies of the raised base."""
        pairs = len(frequencies)
        return frequencies * self.factor ** -(np.arange(pairs) / max(pairs - 1, 1))


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
        self.factor, self.length = _stretch(config), config.original_length
        self.low, self.high = config.low_frequency_factor, config.high_frequency_factor

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Blends by how often a pair turns within the original length."""
        turns = self.length * frequencies / (2 * math.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


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
        self.factor = _stretch(config)
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


def _stretch(config: Any) -> float:
    factor: float = config.factor
    if factor < 1:
        raise ConfigError(
            f"{config.locate('factor')}: a scaling stretches by 1 or more, got {factor}."
        )
    return factor
