"""Dispatch: brings tokens to their experts and back.

A dispatch is no module: what it runs is the mixture's own child, in the mixture's frame.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dovetail.layers.moe.router import Routing


class Dispatched(NamedTuple):
    """The experts' results, weighed and added up for each token, and figures to be logged."""

    mixed_BSE: jax.Array
    summaries: dict[str, Any]


class Dispatch(Protocol):
    """Runs experts on the tokens that were routed to them."""

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing, /) -> Dispatched:
        """Maps [B, S, E] to [B, S, E]; `expert` is a repeated child of the module that calls."""
        ...


def mixed(result_BSKE: jax.Array, weights_BSK: jax.Array) -> jax.Array:
    """Adds up the results of a token's experts by their weights, in float32."""
    weighed = result_BSKE.astype(jnp.float32) * weights_BSK[..., None]
    return weighed.sum(axis=-2)
