"""Position encodings of queries and keys: none here; each kind is a file of its own."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED
from dovetail.module import Module


class AnyPositions(Module):
    """What encodings have in common: `replace(config, AnyPositions, ...)` finds them all."""

    class Config(Module.Config["AnyPositions"]):
        """The head width is set by the parent."""

        head_width: int = REQUIRED


class NoPositions(AnyPositions):
    """No position encoding: order is known from the causal mask alone."""

    def __call__(
        self, query_BSHD: jax.Array, key_BSKD: jax.Array, positions_BS: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns both as they are."""
        return query_BSHD, key_BSKD
