"""Scalings of rotary frequencies: how a model is stretched to sequences longer than it has seen.

Each takes the frequencies of all pairs, fastest first, and returns new ones. They are constants of
the model, computed in double precision.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dovetail.config import ConfigError, Part


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


def stretch(config: Any) -> float:
    """Returns the factor of a scaling, which must be 1 or more."""
    factor: float = config.factor
    if factor < 1:
        raise ConfigError(
            f"{config.locate('factor')}: a scaling stretches by 1 or more, got {factor}."
        )
    return factor
