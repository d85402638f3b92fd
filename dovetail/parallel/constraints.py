"""Sharding constraints: layers name logical axes; whoever runs them supplies mesh and rules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding

from dovetail.module import current_path
from dovetail.parallel.rules import AnyMesh, Axes, AxisRules


@dataclass(frozen=True)
class Placement:
    """A mesh, and the rules that map logical axes to it."""

    mesh: AnyMesh
    rules: AxisRules

    @property
    def device_mesh(self) -> Mesh:
        """The mesh, for those who run something on its devices."""
        if not isinstance(self.mesh, Mesh):
            raise TypeError("This placement is on an abstract mesh: there is no device to run on.")
        return self.mesh

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

    def mesh_axes(self, *logical: str) -> tuple[str, ...]:
        """Returns the mesh axes of more than one device that split any of these logical axes here.

        There are none along an axis over which a `shard_map` around this call has split the arrays
        already: to what runs inside, those are whole.
        """
        manual = jax.sharding.get_abstract_mesh().manual_axes
        found = [self.rules.mesh_axes((axis,), self.mesh, manual)[0] for axis in logical]
        return tuple(dict.fromkeys(name for names in found for name in names))

    def parts(self, *logical: str) -> int:
        """Returns into how many parts these logical axes are split together here."""
        return math.prod(self.mesh.shape[name] for name in self.mesh_axes(*logical))


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
    note_activation(array, *axes)
    placement = _placement.get()
    if placement is None or placement.mesh.size == 1:
        return array
    named = ", ".join(str(axis) for axis in axes)
    sharding = placement.sharding(axes, array.shape, what=f"activation ({named})")
    return jax.lax.with_sharding_constraint(array, sharding)


@dataclass(frozen=True)
class Activation:
    """An array of a step that has logical axes: which module made it, and what it is.

    Attributes:
        path: the module's.
        axes: the logical name of each axis.
        shape: what the module sees.
        dtype: the type of its numbers.
        apart: the mesh axes of a `shard_map` around it; along those, `shape` is one device's part.
    """

    path: str
    axes: tuple[str | None, ...]
    shape: tuple[int, ...]
    dtype: str
    apart: frozenset[str] = frozenset()


_watching: ContextVar[list[Activation] | None] = ContextVar("dovetail_watching", default=None)


@contextmanager
def watch_activations() -> Iterator[list[Activation]]:
    """Collects what is constrained or noted while functions are traced inside the block."""
    found: list[Activation] = []
    token = _watching.set(found)
    try:
        yield found
    finally:
        _watching.reset(token)


def note_activation(array: jax.Array, *axes: str | None) -> None:
    """Tells who watches about an array that the partitioner may split as it likes."""
    found = _watching.get()
    if found is not None:
        apart = frozenset(jax.sharding.get_abstract_mesh().manual_axes)
        found.append(Activation(current_path(), axes, array.shape, array.dtype.name, apart))
