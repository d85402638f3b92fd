"""The squared ReLU."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import register_function


@register_function
def squared_relu(x: jax.Array) -> jax.Array:
    """max(x, 0) squared (Primer, https://arxiv.org/abs/2109.08668)."""
    return jnp.square(jax.nn.relu(x))
