"""RoPE scaling: context extension by changing the rotary frequencies.

The frequencies are constants of the model, computed in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dovetail.config import REQUIRED, Component, ConfigError


class LinearScaling(Component):
    """Position interpolation: divides all frequencies (https://arxiv.org/abs/2306.15595)."""

    magnitude = 1.0

    class Config(Component.Config["LinearScaling"]):
        """The ratio of the new context length to the old."""

        factor: float = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = _factor(config)

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Divides by the factor."""
        return frequencies / self.factor


class NtkScaling(Component):
    """NTK-aware scaling: a larger base, which changes low frequencies most, high ones least."""

    magnitude = 1.0

    class Config(Component.Config["NtkScaling"]):
        """The factor by which the lowest frequency is divided."""

        factor: float = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = _factor(config)

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Returns the frequencies of the larger base."""
        pairs = len(frequencies)
        return frequencies * self.factor ** -(np.arange(pairs) / max(pairs - 1, 1))


class Llama3Scaling(Component):
    """Divides low frequencies, keeps high ones, and interpolates between them (Llama 3.1)."""

    magnitude = 1.0

    class Config(Component.Config["Llama3Scaling"]):
        """The factor, and between which wavelengths to interpolate (original length / factor)."""

        factor: float = REQUIRED
        original_length: int = REQUIRED
        low_frequency_factor: float = 1.0
        high_frequency_factor: float = 4.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor, self.length = _factor(config), config.original_length
        self.low, self.high = config.low_frequency_factor, config.high_frequency_factor

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Interpolates by the number of turns within the original length."""
        turns = self.length * frequencies / (2 * math.pi)
        smooth = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return (1 - smooth) * frequencies / self.factor + smooth * frequencies


class YarnScaling(Component):
    """YaRN: divides low frequencies, keeps high ones, scales attention (https://arxiv.org/abs/2309.00071)."""

    class Config(Component.Config["YarnScaling"]):
        """The factor, and between how many turns within the original length to interpolate.

        `fast_turns` and `slow_turns` are the paper's beta_fast and beta_slow. `magnitude` is a
        factor on the rotated features; None means the paper's rule. `truncate` rounds the bounds
        of the interpolation to whole pairs.
        """

        factor: float = REQUIRED
        original_length: int = REQUIRED
        fast_turns: float = 32.0
        slow_turns: float = 1.0
        magnitude: float | None = None
        truncate: bool = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = _factor(config)
        given = config.magnitude
        self.magnitude = yarn_magnitude(self.factor) if given is None else given

    def scaled(self, frequencies: np.ndarray, base: float) -> np.ndarray:
        """Interpolates between divided and original frequencies by the index of the pair."""
        first, last = (
            self._pair(turns, len(frequencies), base)
            for turns in (self.config.fast_turns, self.config.slow_turns)
        )
        if self.config.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * len(frequencies) - 1)
        steps = (np.arange(len(frequencies)) - first) / max(last - first, 0.001)
        ramp = np.clip(steps, 0.0, 1.0)
        return ramp * frequencies / self.factor + (1 - ramp) * frequencies

    def _pair(self, turns: float, pairs: int, base: float) -> float:
        """Returns the index of the pair with that many turns within the original length."""
        length = self.config.original_length / (turns * 2 * math.pi)
        return pairs * math.log(length) / math.log(base)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Returns YaRN's magnitude: 0.1 * log(factor) + 1."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _factor(config: Any) -> float:
    factor: float = config.factor
    if factor < 1:
        raise ConfigError(f"{config.locate('factor')}: expected 1 or more, got {factor}.")
    return factor
