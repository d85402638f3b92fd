"""Sharding constraints: layers name logical axes; whoever runs them supplies mesh and rules."""

from __future__ import annotations

import math
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
        """Returns the sharding of an array with these logical axes; `what` names it in an error.

        Inside a shard_map, the mesh axes that it splits by hand are none of ours: there an array is
        one device's own part already.
        """
        context = jax.sharding.get_abstract_mesh()
        if not context.manual_axes:
            return self.rules.sharding(axes, self.mesh, shape, what)
        return self.rules.sharding(axes, context, shape, what, apart=context.manual_axes)

    def parts(self, axis: str) -> int:
        """Returns into how many parts the rules split a logical axis here."""
        manual = jax.sharding.get_abstract_mesh().manual_axes
        names = self.rules.mesh_axes(axis, self.mesh, apart=manual)
        return math.prod(self.mesh.shape[name] for name in names)


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
