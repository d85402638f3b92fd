"""Sharding constraints by logical axes: layers name axes, and whoever runs them supplies mesh and rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from dovetail.parallel.rules import AxisRules


@dataclass(frozen=True)
class Placement:
    """A mesh, and the rules that map logical axes to it."""

    mesh: Mesh
    rules: AxisRules

    def sharding(self, axes: Any, shape: Any = None, what: str = "array") -> jax.sharding.NamedSharding:
        """Returns the sharding of an array with these logical axes."""
        return self.rules.sharding(axes, self.mesh, shape, what)


_placement: ContextVar[Placement | None] = ContextVar("placement", default=None)


@contextmanager
def placed(placement: Placement) -> Iterator[None]:
    """Makes constraints inside the block refer to this mesh and these rules."""
    token = _placement.set(placement)
    try:
        yield
    finally:
        _placement.reset(token)


def current_placement() -> Placement | None:
    """Returns the placement in force, if any."""
    return _placement.get()


def constrain(array: jax.Array, *axes: str | None) -> jax.Array:
    """Asks that an activation be split by its logical axes; does nothing without a mesh."""
    placement = _placement.get()
    if placement is None or placement.mesh.size == 1:
        return array
    if len(axes) != array.ndim:
        raise ValueError(f"{array.ndim} axes in shape {array.shape}, but constraint names {axes}.")
    return jax.lax.with_sharding_constraint(array, placement.sharding(axes))
