"""The logical axes of optimizer state, inferred from shapes: there is no code per optimizer.

A leaf of the state belongs to the parameter whose path is among its keys. To find which axis of the
parameter each axis of the leaf is, the state is traced (`jax.eval_shape`) for parameter shapes in
which all sizes differ: equal sizes are the same axis. This is done twice, with all sizes shifted by
one. A size that does not shift, such as three coefficients beside a 3 x 8 matrix, is no axis of the
parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import jax

from dovetail.learner.optimizers.base import Optimizer, Specs

Shape = tuple[int, ...]


class LogicalAxes(tuple[str | None, ...]):
    """The logical axis of each dimension of an array, and its memory kind.

    Unlike a plain tuple it is a pytree leaf.
    """

    memory_kind: str | None
    """JAX's name of the memory; None is the device's default."""

    def __new__(
        cls, axes: Iterable[str | None] = (), memory_kind: str | None = None
    ) -> LogicalAxes:
        """Takes the axes, as a tuple does."""
        self = super().__new__(cls, axes)
        self.memory_kind = memory_kind
        return self

    def with_memory_kind(self, memory_kind: str | None) -> LogicalAxes:
        """Returns the same axes with another memory kind."""
        return LogicalAxes(self, memory_kind)


def optimizer_axes(optimizer: Optimizer, specs: Specs) -> Any:
    """Returns a tree like the optimizer state, with the logical axes of each leaf."""
    actual = _state_shapes(optimizer, specs)
    leaves, structure = jax.tree_util.tree_flatten_with_path(actual)
    trials = [_Trial(optimizer, specs, vary) for vary in (_grow, _shrink)]
    trials = [trial for trial in trials if trial.structures == [structure, structure]]

    def axes_of(index: int, keys: Any, shape: Shape) -> LogicalAxes:
        owner = _owner(keys, specs)
        if owner is None:
            return LogicalAxes((None,) * len(shape))
        for trial in trials:
            origins = trial.origins(index, owner, shape)
            if origins is not None:
                break
        else:
            # No trial has the same structure. A leaf of the parameter's shape has its axes.
            same_shape = shape == specs[owner].shape
            origins = list(range(len(shape))) if same_shape else [None] * len(shape)
        return LogicalAxes(None if o is None else specs[owner].axes[o] for o in origins)

    found = [axes_of(i, keys, leaf.shape) for i, (keys, leaf) in enumerate(leaves)]
    return jax.tree.unflatten(structure, found)


class _Trial:
    """The state for two variations of all shapes, shifted by one."""

    def __init__(
        self, optimizer: Optimizer, specs: Specs, vary: Callable[[Shape, int], Shape]
    ) -> None:
        self.specs = specs
        self.varied = [
            {path: replace(spec, shape=vary(spec.shape, shift)) for path, spec in specs.items()}
            for shift in (0, 1)
        ]
        states = [_state_shapes(optimizer, varied) for varied in self.varied]
        self.leaves = [jax.tree.leaves(state) for state in states]
        self.structures: list[Any] = [jax.tree.structure(state) for state in states]

    def origins(self, index: int, owner: str, shape: Shape) -> list[int | None] | None:
        """Returns the parameter's axis of each axis of a leaf; None if the leaf is of another kind.

        That happens if its kind depends on a size: Adafactor factors only large parameters.
        """
        first, second = (leaves[index].shape for leaves in self.leaves)
        if not len(shape) == len(first) == len(second):
            return None
        sizes = self.specs[owner].shape
        first_sizes, second_sizes = (varied[owner].shape for varied in self.varied)
        pairs = list(zip(first_sizes, second_sizes, strict=True))
        origins: list[int | None] = []
        for size, pair in zip(shape, zip(first, second, strict=True), strict=True):
            origin = pairs.index(pair) if pair in pairs else None
            if origin is not None and sizes[origin] != size:
                return None
            if origin is None and pair[0] == pair[1] != size:
                return None
            origins.append(origin)
        return origins


def _grow(shape: Shape, shift: int) -> Shape:
    """Makes all sizes distinct by small additions, in order; of equal sizes the last grows."""
    return _distinct(shape, sorted(range(len(shape)), key=lambda i: (shape[i], i)), shift, 1)


def _shrink(shape: Shape, shift: int) -> Shape:
    """Makes all sizes distinct by small subtractions, in order."""
    order = sorted(range(len(shape)), key=lambda i: (-shape[i], -i))
    return _distinct(shape, order, shift, -1)


def _distinct(shape: Shape, order: list[int], shift: int, sign: int) -> Shape:
    sizes = list(shape)
    previous: int | None = None
    for i in order:
        size = shape[i] + sign * shift
        if previous is not None and (size - previous) * sign < 1:
            size = previous + sign
        sizes[i] = previous = size
    return tuple(max(size, 1) for size in sizes)


def _owner(keys: Any, specs: Specs) -> str | None:
    named: Iterator[Any] = (getattr(key, "key", None) for key in keys)
    return next((name for name in named if isinstance(name, str) and name in specs), None)


def _state_shapes(optimizer: Optimizer, specs: Specs) -> Any:
    structs = {path: spec.struct() for path, spec in specs.items()}
    return jax.eval_shape(optimizer.transformation(specs).init, structs)
