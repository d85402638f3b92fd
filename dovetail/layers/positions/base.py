"""Position encodings: bases, and the ones that do nothing."""

from __future__ import annotations

from typing import Protocol

import jax

from dovetail.config import REQUIRED
from dovetail.layers.context import TokenContext
from dovetail.module import Module


class BasePositions(Module):
    """The base of query and key encodings: `replace(config, BasePositions, ...)` finds them."""

    class Config(Module.Config["BasePositions"]):
        """The head dim is set by the parent."""

        head_width: int = REQUIRED


class NoPositions(BasePositions):
    """No position encoding (NoPE): only the causal mask tells the order."""

    def __call__(
        self, q_BSHD: jax.Array, k_BSKD: jax.Array, context: TokenContext
    ) -> tuple[jax.Array, jax.Array]:
        """Returns queries and keys unchanged."""
        return q_BSHD, k_BSKD


class InputPositions(Protocol):
    """Adds positions to the token embeddings, before the first layer."""

    def __call__(self, x_BSE: jax.Array, context: TokenContext, /) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        ...


class BaseInputPositions(Module):
    """The base of input positions: `replace(config, BaseInputPositions, ...)` finds them all."""

    class Config(Module.Config["BaseInputPositions"]):
        """The width is set by the parent."""

        width: int = REQUIRED


class NoInputPositions(BaseInputPositions):
    """Adds nothing: positions are encoded in the layers, if at all."""

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        """Returns its input."""
        return x_BSE
