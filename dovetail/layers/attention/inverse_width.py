"""Scores that shrink with the width of a head, and not with its root."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from dovetail.config import REQUIRED, Config, Part, replace
from dovetail.layers.attention.base import AnyAttention
from dovetail.layers.checks import require_positive

C = TypeVar("C", bound=Config[Any])


class InverseWidth(Part):
    """Multiplies scores by sqrt(base) / width, the usual 1 / sqrt(width) at the base width.

    Trained queries and keys are not independent, so their products grow with the width, not with
    its root (muP, https://arxiv.org/abs/2203.03466).
    """

    class Config(Part.Config["InverseWidth"]):
        """The head width at which nothing changes, and the factor there; None is the usual one."""

        base_width: int = REQUIRED
        usual: float | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "base_width")
        self.base_width, self.usual = config.base_width, config.usual

    def __call__(self, head_width: int) -> float:
        """Returns the factor."""
        usual = head_width**-0.5 if self.usual is None else self.usual
        return usual * math.sqrt(self.base_width / head_width)


def with_inverse_width(config: C, base_width: int) -> C:
    """Returns the config with such scores in every attention, whatever they were multiplied by."""

    def scaled(attention: Any) -> Any:
        scale = InverseWidth.Config(base_width=base_width, usual=attention.scale)
        return attention.set(scale=scale)

    return replace(config, AnyAttention, scaled)
