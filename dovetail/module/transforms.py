"""JAX's transformations, carrying state and side outputs across.

A plain `jax.lax.scan` would leave tracers behind if a module inside it added a loss. These run the body in a
scope of its own and hand out what it collected, each with a stated reduction: losses and summaries merge
over layers (sums and weights add), outputs are stacked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.module.context import Arrays, Frame, Scope, join, require_frame, running
from dovetail.module.module import Module
from dovetail.module.outputs import SideOutputs
from dovetail.module.specs import ParameterSpec, VariableSpec


@jax.tree_util.register_dataclass
@dataclass
class _Carried:
    """What a body leaves behind: side outputs, and the state that it wrote."""

    side: SideOutputs
    variables: Arrays
    cache: Arrays


def scan(
    layer: Module,
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    unroll: int = 1,
    around: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """Runs `body` once for each layer of a repeated child, whose arrays are sliced along the first axis.

    Variables and an existing cache cross in the carry and are updated in place; a cache that the body creates
    is stacked. Losses and summaries merge over the layers; outputs are stacked.

    Args:
        layer: the repeated child that the body calls.
        body: from (carry, x) to (carry, y), as for jax.lax.scan.
        init: the first carry.
        xs: further inputs, sliced along their first axis.
        unroll: how many layers one loop iteration holds.
        around: wraps the pure body, for example `functools.partial(jax.checkpoint, policy=...)`.
    """
    frame = require_frame("scan")
    scope, count = frame.scope, _count(frame, layer)
    params, variables = _state_below(frame, layer)
    cache = _cache_below(frame, layer)
    # The index is only for those who need it, so that a plain stack lowers to a plain scan.
    index = jnp.arange(count) if scope.key is not None or variables or cache else None

    def step(carry: Any, item: Any) -> Any:
        value, variables_L, cache_L = carry
        layer_index, layer_params, x = item
        inner = scope.inner(
            parameters={**scope.parameters, **layer_params},
            variables={**scope.variables, **_slice(variables_L, layer_index)},
            cache={**_without(scope.cache, cache), **_slice(cache_L, layer_index)},
            key=None if scope.key is None else jax.random.fold_in(scope.key, layer_index),
        )
        (value, y), carried = _run(frame, inner, body, value, x)
        variables_L = _update(variables_L, carried.variables, layer_index, "variable")
        created = _without(carried.cache, cache_L)
        cache_L = _update(cache_L, _without(carried.cache, created), layer_index, "cache entry")
        return (value, variables_L, cache_L), (y, carried.side, created)

    carry = (init, variables, cache)
    step = around(step) if around is not None else step
    carry, (ys, side, created) = jax.lax.scan(step, carry, (index, params, xs), count, unroll=unroll)
    result, variables, cache = carry
    _absorb(frame, _Carried(side.reduce(), variables, cache | created))
    return result, ys


def vmap(layer: Module, body: Callable[..., Any], *args: Any, in_axes: Any = 0) -> Any:
    """Runs `body` for all copies of a repeated child at once; losses and summaries merge over them."""
    frame = require_frame("vmap")
    scope, count = frame.scope, _count(frame, layer)
    params, variables = _state_below(frame, layer)
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)

    def one(index: Any, own_params: Arrays, own_variables: Arrays, *rest: Any) -> Any:
        inner = scope.inner(
            parameters={**scope.parameters, **own_params},
            variables={**scope.variables, **own_variables},
            key=None if scope.key is None else jax.random.fold_in(scope.key, index),
        )
        return _run(frame, inner, body, *rest)

    mapped = jax.vmap(one, in_axes=(0, 0, 0, *axes))
    result, carried = mapped(jnp.arange(count), params, variables, *args)
    _absorb(frame, _Carried(carried.side.reduce(), carried.variables, carried.cache))
    return result


def checkpoint(body: Callable[..., Any], *, policy: Any = None) -> Callable[..., Any]:
    """Recomputes `body` in the backward pass, except what the policy keeps."""
    return _carrying(body, functools.partial(jax.checkpoint, policy=policy))


def cond(predicate: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], *args: Any) -> Any:
    """Runs one of two branches. Both must add the same side outputs and write the same state."""
    frame = require_frame("cond")

    def branch(body: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inner_args: _run(frame, frame.scope.inner(), body, *inner_args)

    shapes = [jax.eval_shape(branch(body), *args)[1] for body in (if_true, if_false)]
    names = [_names(shape) for shape in shapes]
    if names[0] != names[1]:
        raise ValueError(
            "The two branches of cond leave different things behind: "
            f"{sorted(names[0] - names[1])} only where true, {sorted(names[1] - names[0])} only where "
            "false. Add the same losses, summaries and state in both."
        )
    result, carried = jax.lax.cond(predicate, branch(if_true), branch(if_false), *args)
    _absorb(frame, carried)
    return result


def value_and_grad(body: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Returns a function that gives (value, gradient) with respect to its arguments."""

    def transform(carrying: Any) -> Any:
        def call(*args: Any) -> Any:
            (value, carried), gradient = jax.value_and_grad(carrying, argnums, has_aux=True)(*args)
            return (value, gradient), carried

        return call

    return _carrying(body, transform)


def shard_map(
    body: Callable[..., Any],
    *,
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    axis_names: Iterable[str] | None = None,
    parameter_specs: Callable[[str], Any] | None = None,
) -> Callable[..., Any]:
    """Runs `body` on each device's shard. Losses and summaries merge over the manual mesh axes.

    The parameters and variables of the calling module go in explicitly: replicated, or as
    `parameter_specs` says for a path.
    """
    frame = require_frame("shard_map")
    axes = tuple(axis_names if axis_names is not None else mesh.axis_names)
    params, variables = _state_below(frame, frame.module)
    spec_of = parameter_specs or (lambda path: jax.sharding.PartitionSpec())
    replicated = jax.sharding.PartitionSpec()

    def local(own_params: Arrays, own_variables: Arrays, key: Any, *args: Any) -> Any:
        inner = frame.scope.inner(
            parameters={**frame.scope.parameters, **own_params},
            variables={**frame.scope.variables, **own_variables},
            key=key,
        )
        result, carried = _run(frame, inner, body, *args)
        return result, _Carried(carried.side.across(axes), carried.variables, carried.cache)

    mapped = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=({path: spec_of(path) for path in params}, replicated, replicated, *in_specs),
        out_specs=(out_specs, replicated),
        axis_names=set(axes),
        check_vma=False,
    )

    def call(*args: Any) -> Any:
        result, carried = mapped(params, variables, frame.scope.key, *args)
        _absorb(frame, carried)
        return result

    return call


def _carrying(body: Callable[..., Any], transform: Callable[[Any], Any]) -> Callable[..., Any]:
    """Applies a JAX transformation to a body, and lets its side outputs out."""

    def call(*args: Any) -> Any:
        frame = require_frame("A transformation")

        def carrying(*inner_args: Any) -> Any:
            return _run(frame, frame.scope.inner(), body, *inner_args)

        result, carried = transform(carrying)(*args)
        _absorb(frame, carried)
        return result

    return call


def _run(frame: Frame, inner: Scope, body: Callable[..., Any], *args: Any) -> tuple[Any, _Carried]:
    """Runs a body in a scope of its own, and returns what it leaves behind beside its result."""
    variables, cache = dict(inner.variables), dict(inner.cache)
    with running(Frame(inner, frame.module, frame.call_path)):
        result = body(*args)
    return result, _Carried(
        inner.outputs, _written(inner.variables, variables), _written(inner.cache, cache)
    )


def _absorb(frame: Frame, carried: _Carried) -> None:
    """Hands what a body left behind to the scope around it."""
    left = carried.side
    if left.losses or left.summaries or left.outputs or carried.variables or carried.cache:
        frame.scope.check_trace("A transformation with side outputs")
    frame.scope.outputs.merge(left)
    frame.scope.variables.update(carried.variables)
    frame.scope.cache.update(carried.cache)


def _state_below(frame: Frame, module: Module) -> tuple[Arrays, Arrays]:
    """Returns the parameters and variables of a module and everything below it."""
    scope = frame.scope
    params = {p: scope.parameters[p] for p in scope.tree.specs(ParameterSpec, module)}
    variables = {p: scope.variables[p] for p in scope.tree.specs(VariableSpec, module)}
    return params, variables


def _cache_below(frame: Frame, module: Module) -> Arrays:
    prefix = join(frame.path_of_call(module), "")
    return {p: v for p, v in frame.scope.cache.items() if p.startswith(f"{prefix}/")}


def _count(frame: Frame, layer: Module) -> int:
    for edge in frame.module.edges().values():
        if edge.module is layer and edge.count is not None:
            return edge.count
    raise ValueError(
        f"This {type(layer).__name__} is not a repeated child of {type(frame.module).__name__}. "
        "Declare it with `self.layer = repeated(module, count)`."
    )


def _slice(arrays: Arrays, index: Any) -> Arrays:
    if not arrays:
        return {}
    pick = functools.partial(jax.lax.dynamic_index_in_dim, index=index, axis=0, keepdims=False)
    return {path: jax.tree.map(pick, value) for path, value in arrays.items()}


def _update(arrays: Arrays, new: Arrays, index: Any, kind: str) -> Arrays:
    unknown = set(new) - set(arrays)
    if unknown:
        raise ValueError(f"A {kind} outside the scanned layer was written: {sorted(unknown)}.")

    def put(old: jax.Array, value: Any) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(old, value.astype(old.dtype), index, 0)

    return arrays | {path: jax.tree.map(put, arrays[path], value) for path, value in new.items()}


def _without(arrays: Arrays, other: Arrays) -> Arrays:
    return {path: value for path, value in arrays.items() if path not in other}


def _written(now: Arrays, before: Arrays) -> Arrays:
    return {path: value for path, value in now.items() if before.get(path) is not value}


def _names(carried: _Carried) -> set[str]:
    side = carried.side
    return {*side.losses, *side.summaries, *side.outputs, *carried.variables, *carried.cache}
