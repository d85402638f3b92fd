"""Norms on both sides of a branch."""

from __future__ import annotations

import jax

from dovetail.config import ConfigOf
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.norms.rms import RMSNorm
from dovetail.layers.residual.pre import NormedResidual


class SandwichNorm(NormedResidual):
    """Norm before the branch, and another on what it returns."""

    class Config(NormedResidual.Config):
        """Adds the second norm."""

        output_norm: ConfigOf[TokenMap] = RMSNorm.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.output_norm = config.output_norm.build(width=config.width)

    def before(self, x_BSE: jax.Array) -> jax.Array:
        """Normalises what the branch reads."""
        return self.norm(x_BSE)

    def after(self, x_BSE: jax.Array, branch_BSE: jax.Array) -> jax.Array:
        """Adds the normalised branch."""
        return x_BSE + self.dropout(self.output_norm(branch_BSE))
