"""Residual joints: where the norms stand around a branch. Swap one to move them in every model."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.dropout import Dropout
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.norms.rms import RMSNorm
from dovetail.module import Module


class NormedResidual(Module):
    """What the joints below have in common: a norm, and dropout on the branch."""

    class Config(Module.Config["NormedResidual"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        norm: ConfigOf[TokenMap] = RMSNorm.Config()
        dropout: ConfigOf[TokenMap] = Dropout.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.norm = config.norm.build(width=config.width)
        self.dropout = config.dropout.build()


class PreNorm(NormedResidual):
    """Norm before the branch; the stream itself is never normalised."""

    def before(self, x_BSE: jax.Array) -> jax.Array:
        """Normalises what the branch reads."""
        return self.norm(x_BSE)

    def after(self, x_BSE: jax.Array, branch_BSE: jax.Array) -> jax.Array:
        """Adds the branch."""
        return x_BSE + self.dropout(branch_BSE)
