"""The arrays of a repeated child, stacked along a first axis, as scan and vmap see them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Self

import jax

from dovetail.module.context import Arrays, Frame, Scope
from dovetail.module.crossing import Carried, state_below
from dovetail.module.module import Module


@dataclass(frozen=True)
class Layered:
    """A repeated child with its stacked parameters, variables and cache."""

    frame: Frame
    layer: Module
    call_path: str
    count: int
    params: Arrays
    variables: Arrays
    cache: Arrays

    @classmethod
    def of(cls, frame: Frame, layer: Module, some: int | None = None) -> Self:
        """Gathers the arrays of a repeated child of the module that runs.

        Inside a shard_map there may be `some` of the copies here.
        """
        count, call_path = some or _count(frame, layer), frame.enter(layer).call_path
        params, variables = state_below(frame, layer)
        cache = _cache_below(frame, call_path)
        for path, value in {**params, **variables, **cache}.items():
            _check_first_axis(path, value, count)
        return cls(frame, layer, call_path, count, params, variables, cache)

    def scope(self, index: Any, params: Arrays, variables: Arrays, cache: Arrays) -> Scope:
        """Returns the scope of one layer, given its slices."""
        outer = self.frame.scope
        return outer.inner(
            parameters={**outer.parameters, **params},
            variables={**outer.variables, **variables},
            cache={**_without(outer.cache, self.cache), **cache},
            key=None if outer.key is None else jax.random.fold_in(outer.key, index),
            entered=outer.entered | {id(self.layer)},
        )

    def check(self, left: Carried) -> Arrays:
        """Returns the cache entries that a body created; refuses writes outside of the layer."""
        created = _without(left.cache, self.cache)
        for path in _without(left.variables, self.variables):
            raise ValueError(
                f"The variable {path!r} does not belong to the repeated {self.call_path!r}, so its "
                "layers would overwrite each other. Assign it outside, from what the body returns."
            )
        for path in created:
            if not path.startswith(f"{self.call_path}/"):
                raise ValueError(
                    f"The cache entry {path!r} does not belong to the repeated {self.call_path!r}, "
                    "so its layers would overwrite each other. Let a child of the layer write it; "
                    "that may be a Shared one."
                )
        return created

    def pick(self, stacked: Arrays, index: Any) -> Arrays:
        """Returns one layer's slices."""
        if not stacked:
            return {}
        pick = functools.partial(jax.lax.dynamic_index_in_dim, index=index, axis=0, keepdims=False)
        return {path: jax.tree.map(pick, value) for path, value in stacked.items()}

    def put(self, stacked: Arrays, new: Arrays, index: Any) -> Arrays:
        """Writes one layer's slices in place; what is not stacked yet is left out."""
        known = {path: value for path, value in new.items() if path in stacked}
        written = {
            path: jax.tree.map(functools.partial(_put, path, index), stacked[path], value)
            for path, value in known.items()
        }
        return stacked | written

    def pick_variables(self, variables: Arrays, index: Any) -> Arrays:
        """Returns one layer's variables."""
        return self.pick(variables, index)

    def put_variables(self, variables: Arrays, new: Arrays, index: Any) -> Arrays:
        """Takes in what one layer assigned to its variables."""
        return self.put(variables, new, index)


class SameLayer(Layered):
    """A child that is no repeated one, but runs several times: only its cache is stacked.

    A variable crosses from turn to turn, as parameters would if they changed.
    """

    @classmethod
    def times(cls, frame: Frame, layer: Module, count: int) -> Self:
        """Gathers the arrays of a child that runs `count` times."""
        if any(edge.module is layer and edge.count for edge in frame.module.edges().values()):
            raise ValueError(
                f"This {type(layer).__name__} is repeated, so that its layers have parameters of "
                "their own: leave out times=, or do not declare it with repeated()."
            )
        call_path = frame.enter(layer).call_path
        _, variables = state_below(frame, layer)
        cache = _cache_below(frame, call_path)
        for path, value in cache.items():
            _check_first_axis(path, value, count)
        return cls(frame, layer, call_path, count, {}, variables, cache)

    def pick_variables(self, variables: Arrays, index: Any) -> Arrays:
        """Returns all variables."""
        return variables

    def put_variables(self, variables: Arrays, new: Arrays, index: Any) -> Arrays:
        """Takes in what one turn assigned."""
        return variables | new


def _cache_below(frame: Frame, call_path: str) -> Arrays:
    below = f"{call_path}/"
    return {path: v for path, v in frame.scope.cache.items() if path.startswith(below)}


def _put(path: str, index: Any, stacked: jax.Array, new: Any) -> jax.Array:
    new = jax.numpy.asarray(new)
    if new.shape != stacked.shape[1:]:
        raise ValueError(
            f"{path!r} holds {stacked.shape[1:]} for each layer, and {new.shape} was written. What "
            "crosses a scan keeps its shape."
        )
    return jax.lax.dynamic_update_index_in_dim(stacked, new.astype(stacked.dtype), index, 0)


def _count(frame: Frame, layer: Module) -> int:
    for edge in frame.module.edges().values():
        if edge.module is layer and edge.count is not None:
            return edge.count
    raise ValueError(
        f"This {type(layer).__name__} is not a repeated child of {type(frame.module).__name__}. "
        "Declare it with `self.layer = repeated(module, count)`."
    )


def _check_first_axis(path: str, value: Any, count: int) -> None:
    for leaf in jax.tree.leaves(value):
        if leaf.shape[:1] != (count,):
            raise ValueError(
                f"{path!r} belongs to a child that is repeated {count} times, so its first axis "
                f"must be {count}; it has the shape {leaf.shape}."
            )


def _without(arrays: Arrays, other: Arrays) -> Arrays:
    return {path: value for path, value in arrays.items() if path not in other}
