"""Position encodings of queries and keys: none here; each kind is a file of its own."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED
from dovetail.module import Module


class NoPositions(Module):
    """No position encoding: order is known from the causal mask alone."""

    class Config(Module.Config["NoPositions"]):
        """The head width is set by the parent, and not used."""

        head_width: int = REQUIRED

    def __call__(
        self, query_BSHD: jax.Array, key_BSKD: jax.Array, positions_BS: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns both as they are."""
        return query_BSHD, key_BSKD
