"""Scaled residual connections: a fixed factor on what is added to the residual stream."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from dovetail.config import REQUIRED, Config, ConfigOf, replace, select, wraps
from dovetail.layers.dropout import Dropout
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.residual import BaseResidual
from dovetail.layers.stack.stack import Pattern, Stack
from dovetail.module import Module

C = TypeVar("C", bound=Config[Any])


class ScaledResidual(Module):
    """Scales a sublayer's output just before it is added, in any residual connection.

    It wraps the dropout, which every residual connection applies after a norm of the output (which
    would undo the factor) and before a norm of the sum.
    """

    class Config(Module.Config["ScaledResidual"]):
        factor: float = REQUIRED
        dropout: ConfigOf[TokenMap] = wraps(Dropout.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = config.factor
        self.dropout = config.dropout.build()

    def __call__(self, x: jax.Array) -> jax.Array:
        """Keeps shape and dtype."""
        return self.dropout(x) * self.factor


def with_scaled_residuals(config: C, factor: float) -> C:
    """Returns the config with a factor on the sublayer's output in every residual connection."""

    def scaled(residual: Any) -> Any:
        return residual.set(dropout=ScaledResidual.Config(factor=factor, dropout=residual.dropout))

    return replace(config, BaseResidual, scaled)


def count_residuals(layer: Any) -> int:
    """Returns the number of residual connections in a layer, or in all layers of a stack."""
    if isinstance(layer, Stack.Config):
        return int(layer.num_layers) * count_residuals(layer.layer)
    if isinstance(layer, Pattern.Config):
        return sum(count_residuals(each) for each in layer.layers)
    return len(select(layer, BaseResidual))
