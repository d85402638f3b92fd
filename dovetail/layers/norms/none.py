"""NoNorm: nothing where a norm could stand."""

from __future__ import annotations

import jax

from dovetail.layers.norms.rms import AnyNorm


class NoNorm(AnyNorm):
    """Leaves the stream as it is."""

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        """Returns what came in."""
        return x_BSE
