"""Norm after the sum."""

from __future__ import annotations

import jax

from dovetail.layers.residual.pre import NormedResidual


class PostNorm(NormedResidual):
    """Norm after the sum, as in the first transformers."""

    def before(self, x_BSE: jax.Array) -> jax.Array:
        """Leaves the stream as it is."""
        return x_BSE

    def after(self, x_BSE: jax.Array, branch_BSE: jax.Array) -> jax.Array:
        """Normalises the sum."""
        return self.norm(x_BSE + self.dropout(branch_BSE))
