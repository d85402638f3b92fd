"""A branch that counts for less: a fixed factor on what joins the stream."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from dovetail.config import REQUIRED, Config, ConfigOf, replace, select, wraps
from dovetail.layers.dropout import Dropout
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.residual.pre import NormedResidual
from dovetail.layers.stack.stack import Pattern, Stack
from dovetail.module import Module

C = TypeVar("C", bound=Config[Any])


class ScaledBranch(Module):
    """Multiplies a branch by a factor just before it is added, in any residual joint.

    It stands around the joint's dropout, which all joints apply last: behind a norm of the branch,
    which would undo the factor, and before a norm of the sum.
    """

    class Config(Module.Config["ScaledBranch"]):
        """The factor, and the dropout that it stands around."""

        factor: float = REQUIRED
        dropout: ConfigOf[TokenMap] = wraps(Dropout.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = config.factor
        self.dropout = config.dropout.build()

    def __call__(self, x: jax.Array) -> jax.Array:
        """Keeps the shape and type."""
        return self.dropout(x) * self.factor


def with_scaled_branches(config: C, factor: float) -> C:
    """Returns the config with the branch of every residual joint multiplied by a factor."""

    def scaled(joint: Any) -> Any:
        return joint.set(dropout=ScaledBranch.Config(factor=factor, dropout=joint.dropout))

    return replace(config, NormedResidual, scaled)


def branches_of(layer: Any) -> int:
    """Returns how many branches join the stream in a layer, or in all layers of a stack."""
    if isinstance(layer, Stack.Config):
        return int(layer.num_layers) * branches_of(layer.layer)
    if isinstance(layer, Pattern.Config):
        return sum(branches_of(each) for each in layer.layers)
    return len(select(layer, NormedResidual))
