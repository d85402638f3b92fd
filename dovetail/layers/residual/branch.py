"""Norm on what the branch returns."""

from __future__ import annotations

import jax

from dovetail.layers.residual.pre import NormedResidual


class BranchNorm(NormedResidual):
    """Norm on what the branch returns, and none before it (OLMo 2)."""

    def before(self, x_BSE: jax.Array) -> jax.Array:
        """Leaves the stream as it is."""
        return x_BSE

    def after(self, x_BSE: jax.Array, branch_BSE: jax.Array) -> jax.Array:
        """Adds the normalised branch."""
        return x_BSE + self.dropout(self.norm(branch_BSE))
