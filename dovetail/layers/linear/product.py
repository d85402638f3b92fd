"""The product of a linear map: how rows and a weight are multiplied, in which precision."""

from __future__ import annotations

from typing import Protocol

import jax

from dovetail.config import Part
from dovetail.module import Grouped


class Product(Protocol):
    """Multiplies. Inside experts the weight is a grouped value (see `dovetail.module.grouped`)."""

    def __call__(self, x: jax.Array, weight: jax.Array | Grouped, /) -> jax.Array:
        """Maps [..., in] and [in, out] to [..., out]."""
        ...


class PlainProduct(Part):
    """Multiplies in the type that the numbers come in."""

    def __call__(self, x: jax.Array, weight: jax.Array | Grouped) -> jax.Array:
        """Maps [..., in] and [in, out] to [..., out]."""
        return x @ weight
