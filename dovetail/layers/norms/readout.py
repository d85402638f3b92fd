"""The last norm, scaled so that scores do not grow with the width."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from dovetail.config import REQUIRED, Config, ConfigOf, replace, wraps
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.norms.last import EndsInNorm
from dovetail.layers.norms.rms import RMSNorm
from dovetail.module import Module

C = TypeVar("C", bound=Config[Any])


class ScaledReadout(Module):
    """Multiplies what a norm returns by base width / width (muP, arXiv 2203.03466).

    At a decoder's end that is a multiplier of the scores: each is a sum over the width, of which
    training makes all terms agree.
    """

    class Config(Module.Config["ScaledReadout"]):
        """The width is set by the parent; at the base width nothing changes."""

        width: int = REQUIRED
        base_width: int = REQUIRED
        norm: ConfigOf[TokenMap] = wraps(RMSNorm.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "base_width")
        self.factor = config.base_width / config.width
        self.norm = config.norm.build(width=config.width)

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Keeps the shape and type."""
        return self.norm(x_BSE) * self.factor


def with_scaled_readout(config: C, base_width: int) -> C:
    """Returns the config with the last norm of every decoder and further head scaled."""

    def scaled(part: Any) -> Any:
        return part.set(norm=ScaledReadout.Config(base_width=base_width, norm=part.norm))

    return replace(config, EndsInNorm, scaled)
