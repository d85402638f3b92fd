"""The stacked arrays of a repeated child, as scan and vmap slice them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Self

import jax

from dovetail.module.context import Arrays, Frame, Scope
from dovetail.module.effects import Effects, state_below
from dovetail.module.module import Module


@dataclass(frozen=True)
class StackedLayers:
    """A repeated child with its parameters, variables and cache, stacked along the first axis."""

    frame: Frame
    layer: Module
    call_path: str
    count: int
    params: Arrays
    variables: Arrays
    cache: Arrays

    @classmethod
    def of(cls, frame: Frame, layer: Module, local_count: int | None = None) -> Self:
        """Collects the arrays of a repeated child of the running module.

        Inside a shard_map over the copies, a device has only `local_count` of them.
        """
        count, call_path = local_count or _count(frame, layer), frame.enter(layer).call_path
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

    def check(self, effects: Effects) -> Arrays:
        """Returns the cache entries that a body created; refuses writes outside of the layer."""
        created = _without(effects.cache, self.cache)
        for path in _without(effects.variables, self.variables):
            raise ValueError(
                f"The variable {path!r} does not belong to the repeated {self.call_path!r}, so its "
                "layers would overwrite each other. Return the value from the body, and assign it "
                "outside."
            )
        for path in created:
            if not path.startswith(f"{self.call_path}/"):
                raise ValueError(
                    f"The cache entry {path!r} does not belong to the repeated {self.call_path!r}, "
                    "so its layers would overwrite each other. Write it in a child of the layer, "
                    "which may be a Shared one."
                )
        return created

    def slice_layer(self, stacked: Arrays, index: Any) -> Arrays:
        """Returns one layer's slices."""
        if not stacked:
            return {}
        take = functools.partial(jax.lax.dynamic_index_in_dim, index=index, axis=0, keepdims=False)
        return {path: jax.tree.map(take, value) for path, value in stacked.items()}

    def update_layer(self, stacked: Arrays, new: Arrays, index: Any) -> Arrays:
        """Updates one layer's slices in place; leaves out entries that are not stacked yet."""
        known = {path: value for path, value in new.items() if path in stacked}
        written = {
            path: jax.tree.map(functools.partial(_update, path, index), stacked[path], value)
            for path, value in known.items()
        }
        return stacked | written

    def slice_variables(self, variables: Arrays, index: Any) -> Arrays:
        """Returns one layer's variables."""
        return self.slice_layer(variables, index)

    def update_variables(self, variables: Arrays, new: Arrays, index: Any) -> Arrays:
        """Updates one layer's variables."""
        return self.update_layer(variables, new, index)


class LoopedLayer(StackedLayers):
    """A child that runs several times with the same parameters: only its cache is stacked.

    Each iteration sees the variables that the one before it wrote.
    """

    @classmethod
    def times(cls, frame: Frame, layer: Module, count: int) -> Self:
        """Collects the arrays of a child that runs `count` times."""
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

    def slice_variables(self, variables: Arrays, index: Any) -> Arrays:
        """Returns all variables."""
        return variables

    def update_variables(self, variables: Arrays, new: Arrays, index: Any) -> Arrays:
        """Merges what one iteration assigned."""
        return variables | new


def _cache_below(frame: Frame, call_path: str) -> Arrays:
    below = f"{call_path}/"
    return {path: v for path, v in frame.scope.cache.items() if path.startswith(below)}


def _update(path: str, index: Any, stacked: jax.Array, new: Any) -> jax.Array:
    new = jax.numpy.asarray(new)
    if new.shape != stacked.shape[1:]:
        raise ValueError(
            f"{path!r} has the shape {stacked.shape[1:]} in each layer, and {new.shape} was "
            "written. State in the carry of a scan keeps its shape."
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
