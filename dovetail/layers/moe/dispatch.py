"""Dispatch: sends tokens to their experts, and combines the experts' outputs.

A dispatch is not a module: the expert that it runs is a child of the mixture.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dovetail.layers.moe.router import Routing


class DispatchOutput(NamedTuple):
    """The combined expert outputs of each token, and metrics."""

    output_BSE: jax.Array
    summaries: dict[str, Any]


class Dispatch(Protocol):
    """Runs experts on the tokens that were routed to them."""

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing, /) -> DispatchOutput:
        """Maps [B, S, E] to [B, S, E]; `expert` is a repeated child of the calling module."""
        ...


def combine(output_BSKE: jax.Array, weights_BSK: jax.Array) -> jax.Array:
    """Sums the outputs of each token's experts by their weights, in float32."""
    weighted = output_BSKE.astype(jnp.float32) * weights_BSK[..., None]
    return weighted.sum(axis=-2)
