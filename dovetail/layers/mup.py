"""muP: scales of attention scores and logits that keep their size as the width grows."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import jax

from dovetail.config import REQUIRED, Component, Config, ConfigOf, replace, wraps
from dovetail.layers.attention.base import BaseAttention
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.norms import HasFinalNorm, RMSNorm
from dovetail.module import Module

C = TypeVar("C", bound=Config[Any])


class InverseWidthScale(Component):
    """The scale sqrt(base width) / head dim, which is 1 / sqrt(head dim) at the base width.

    Trained queries and keys are correlated, so their dot products grow with the head dim, not with
    its square root (muP, https://arxiv.org/abs/2203.03466).
    """

    class Config(Component.Config["InverseWidthScale"]):
        """The head dim without a change, and the scale there; None is 1 / sqrt(head dim)."""

        base_width: int = REQUIRED
        base_scale: float | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "base_width")
        self.base_width, self.base_scale = config.base_width, config.base_scale

    def __call__(self, head_width: int) -> float:
        """Returns the scale."""
        scale = head_width**-0.5 if self.base_scale is None else self.base_scale
        return scale * math.sqrt(self.base_width / head_width)


def with_mup_scale(config: C, base_width: int) -> C:
    """Returns the config with this scale in every attention layer."""

    def scaled(attention: Any) -> Any:
        scale = InverseWidthScale.Config(base_width=base_width, base_scale=attention.scale)
        return attention.set(scale=scale)

    return replace(config, BaseAttention, scaled)


class ScaledReadout(Module):
    """Scales the output of a norm by base width / width (muP, https://arxiv.org/abs/2203.03466).

    On the final norm it is a multiplier of the logits. Each logit is a sum over the width, and
    training correlates its terms.
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
    """Returns the config with the final norm of every decoder and head scaled."""

    def scaled(owner: Any) -> Any:
        return owner.set(norm=ScaledReadout.Config(base_width=base_width, norm=owner.norm))

    return replace(config, HasFinalNorm, scaled)
