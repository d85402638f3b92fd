"""Sharding constraints: layers name logical axes; whoever runs them supplies mesh and rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding

from dovetail.parallel.rules import Axes, AxisRules


@dataclass(frozen=True)
class Placement:
    """A mesh, and the rules that map logical axes to it."""

    mesh: Mesh
    rules: AxisRules

    def sharding(
        self, axes: Axes, shape: Sequence[int] | None = None, what: str = "array"
    ) -> NamedSharding:
        """Returns the sharding of an array with these logical axes; `what` names it in an error."""
        return self.rules.sharding(axes, self.mesh, shape, what)


_placement: ContextVar[Placement | None] = ContextVar("dovetail_placement", default=None)


@contextmanager
def placed(placement: Placement) -> Iterator[None]:
    """Makes constraints inside the block refer to this mesh and these rules.

    It acts while a function is traced, and `jax.jit` does not see it: a function that was traced
    under one placement keeps it, so jit anew for another.
    """
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
    if len(axes) != array.ndim:
        raise ValueError(f"{array.ndim} axes in shape {array.shape}, but constraint names {axes}.")
    placement = _placement.get()
    if placement is None or placement.mesh.size == 1:
        return array
    named = ", ".join(str(axis) for axis in axes)
    sharding = placement.sharding(axes, array.shape, what=f"activation ({named})")
    return jax.lax.with_sharding_constraint(array, sharding)
