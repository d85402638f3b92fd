"""A branch that counts for less: a fixed factor on what joins the stream."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigOf, wraps
from dovetail.layers.dropout import Dropout
from dovetail.layers.interfaces import TokenMap
from dovetail.module import Module


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
