"""Sharding constraints: layers name logical axes, and the caller supplies mesh and rules."""

from __future__ import annotations

import math
import warnings
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
        """The mesh, for callers that run on its devices."""
        if not isinstance(self.mesh, Mesh):
            raise TypeError("This placement is on an abstract mesh: there is no device to run on.")
        return self.mesh

    def sharding(
        self, axes: Axes, shape: Sequence[int] | None = None, name: str = "array"
    ) -> NamedSharding:
        """Returns the sharding of an array with these logical axes; `name` is for errors.

        Inside a `shard_map`, arrays are per-device shards along its manual axes. The rules do not
        use those axes.
        """
        context = jax.sharding.get_abstract_mesh()
        if not context.manual_axes:
            return self.rules.sharding(axes, self.mesh, shape, name)
        return self.rules.sharding(axes, context, shape, name, manual_axes=context.manual_axes)

    def mesh_axes(self, *logical: str) -> tuple[str, ...]:
        """Returns the mesh axes, of size above 1, over which these logical axes are sharded here.

        The manual axes of an enclosing `shard_map` do not count: its arrays are already shards.
        """
        manual = jax.sharding.get_abstract_mesh().manual_axes
        found = [self.rules.mesh_axes((axis,), self.mesh, manual)[0] for axis in logical]
        return tuple(dict.fromkeys(name for names in found for name in names))

    def replicated(self) -> Placement:
        """Returns a placement on this mesh that replicates activations, so that any shape fits."""
        return Placement(self.mesh, AxisRules.Config(rules={}).build())

    def num_shards(self, *logical: str) -> int:
        """Returns the number of shards that these logical axes have together here."""
        return math.prod(self.mesh.shape[name] for name in self.mesh_axes(*logical))


_placement: ContextVar[Placement | None] = ContextVar("dovetail_placement", default=None)


@contextmanager
def use_placement(placement: Placement) -> Iterator[None]:
    """Makes constraints inside the block use this mesh and these rules.

    It acts at trace time and is no part of `jax.jit`'s cache key. A function traced under one
    placement keeps it, so jit a new function for another placement.
    """
    token = _placement.set(placement)
    try:
        yield
    finally:
        _placement.reset(token)


def current_placement() -> Placement | None:
    """Returns the placement in use, if any."""
    return _placement.get()


def constrain(array: jax.Array, *axes: str | None) -> jax.Array:
    """Applies a sharding constraint to an activation by its logical axes; no-op without a mesh."""
    if len(axes) != array.ndim:
        raise ValueError(f"{array.ndim} axes in shape {array.shape}, but constraint names {axes}.")
    record_activation(array, *axes)
    placement = _placement.get()
    if placement is None or placement.mesh.size == 1:
        return array
    for name in axes:
        if (advice := placement.rules.misspelt(name)) is not None:
            warnings.warn(f"{current_path() or 'an activation'}: {advice}", stacklevel=2)
    named = ", ".join(str(axis) for axis in axes)
    sharding = placement.sharding(axes, array.shape, name=f"activation ({named})")
    return jax.lax.with_sharding_constraint(array, sharding)


@dataclass(frozen=True)
class Activation:
    """An activation with logical axes, recorded while a step is traced.

    Attributes:
        path: the path of the module that made it.
        axes: the logical name of each axis.
        shape: its shape in the module.
        dtype: its dtype.
        manual_axes: the manual mesh axes of an enclosing `shard_map`; along them, `shape` is one
            device's shard.
    """

    path: str
    axes: tuple[str | None, ...]
    shape: tuple[int, ...]
    dtype: str
    manual_axes: frozenset[str] = frozenset()


_captured: ContextVar[list[Activation] | None] = ContextVar("dovetail_activations", default=None)


@contextmanager
def capture_activations() -> Iterator[list[Activation]]:
    """Collects the activations that are constrained or recorded while the block traces."""
    found: list[Activation] = []
    token = _captured.set(found)
    try:
        yield found
    finally:
        _captured.reset(token)


def record_activation(array: jax.Array, *axes: str | None) -> None:
    """Records an activation without constraining it: the partitioner may shard it as it likes."""
    found = _captured.get()
    if found is not None:
        manual_axes = frozenset(jax.sharding.get_abstract_mesh().manual_axes)
        found.append(Activation(current_path(), axes, array.shape, array.dtype.name, manual_axes))
