"""JAX's transformations, carrying state and side outputs across.

A plain `jax.lax.scan` would leave tracers behind if a module inside it added a loss. These run the
body in a scope of its own and hand out what it collected, each with a stated reduction: losses and
summaries merge over layers, copies and devices (sums and weights add); outputs are stacked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from dovetail.module.context import Arrays, require_frame
from dovetail.module.crossing import Carried, absorb, run, state_below
from dovetail.module.layered import Layered, SameLayer
from dovetail.module.manual import Crossing, Parts, Whole
from dovetail.module.module import Module


def scan(
    layer: Module,
    body: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    *,
    unroll: int = 1,
    around: Callable[[Any], Any] | None = None,
    times: int | None = None,
    first: Any = 0,
) -> tuple[Any, Any]:
    """Runs `body` once for each layer of a repeated child, with that layer's slice of its arrays.

    With `times`, the child is not a repeated one, and runs so often with the same parameters and
    variables; its cache is sliced all the same, so that each turn remembers its own.

    Variables and an existing cache cross in the carry and are updated in place; a cache that the
    body creates is stacked. Losses and summaries merge over the layers; outputs are stacked.

    Args:
        layer: the repeated child that the body calls.
        body: from (carry, x) to (carry, y), as for jax.lax.scan.
        init: the first carry.
        xs: further inputs, sliced along their first axis.
        unroll: how many layers one loop iteration holds.
        around: wraps the pure body, for example `functools.partial(jax.checkpoint, policy=...)`.
        times: how often a child that is not repeated runs.
        first: the number of the first layer, for random keys, in a part of a longer stack.
    """
    frame = require_frame("scan")
    layers = Layered.of(frame, layer) if times is None else SameLayer.times(frame, layer, times)

    def step(carry: Any, item: Any) -> Any:
        value, variables_L, cache_L = carry
        index, params, x = item
        variables, cache = layers.pick_variables(variables_L, index), layers.pick(cache_L, index)
        inner = layers.scope(first + index if index is not None else None, params, variables, cache)
        (value, y), left = run(frame, inner, body, value, x)
        created = layers.check(left)
        variables_L = layers.put_variables(variables_L, left.variables, index)
        cache_L = layers.put(cache_L, left.cache, index)
        return (value, variables_L, cache_L), (y, left.side, created)

    # The index is only for those who need it, so that a plain stack lowers to a plain scan.
    needs_index = frame.scope.key is not None or layers.variables or layers.cache
    index = jnp.arange(layers.count) if needs_index else None
    carry = (init, layers.variables, layers.cache)
    step = around(step) if around is not None else step
    (result, variables, cache), (ys, side, created) = jax.lax.scan(
        step, carry, (index, layers.params, xs), layers.count, unroll=unroll
    )
    absorb(frame, Carried(side.reduce(), variables, cache | created))
    return result, ys


def vmap(layer: Module, body: Callable[..., Any], *args: Any, in_axes: Any = 0) -> Any:
    """Runs `body` for all copies of a repeated child at once.

    Losses and summaries merge over the copies; outputs and a created cache are stacked.
    """
    frame = require_frame("vmap")
    layers = Layered.of(frame, layer)
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)

    def one(index: Any, params: Arrays, variables: Arrays, cache: Arrays, *rest: Any) -> Any:
        result, left = run(frame, layers.scope(index, params, variables, cache), body, *rest)
        created = layers.check(left)
        return result, Carried(left.side, left.variables, left.cache | created)

    index = jnp.arange(layers.count) if frame.scope.key is not None else None
    mapped = jax.vmap(one, in_axes=(0, 0, 0, 0, *axes), axis_size=layers.count)
    result, left = mapped(index, layers.params, layers.variables, layers.cache, *args)
    absorb(frame, Carried(left.side.reduce(), left.variables, left.cache))
    return result


def checkpoint(
    body: Callable[..., Any], *, policy: Any = None, prevent_cse: bool = True
) -> Callable[..., Any]:
    """Recomputes `body` in the backward pass, except what the policy keeps."""
    return _carrying(
        body, functools.partial(jax.checkpoint, policy=policy, prevent_cse=prevent_cse)
    )


def evaluated(body: Callable[..., Any], *args: Any) -> Any:
    """Runs `body` as it runs outside of training, and drops what it leaves beside its result.

    For a part that is only asked: its losses are nobody's, and its variables stay as they are.
    """
    frame = require_frame("evaluated")
    result, _ = run(frame, frame.scope.inner(training=False), body, *args)
    return result


def cond(
    predicate: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], *args: Any
) -> Any:
    """Runs one of two branches. Both must add the same side outputs and write the same state."""
    frame = require_frame("cond")
    names: dict[bool, set[str]] = {}

    def branch(body: Callable[..., Any], which: bool) -> Callable[..., Any]:
        def call(*inner_args: Any) -> Any:
            result, left = run(frame, frame.scope.inner(), body, *inner_args)
            names[which] = left.names()
            return result, left

        return call

    try:
        result, left = jax.lax.cond(
            predicate, branch(if_true, True), branch(if_false, False), *args
        )
    except TypeError as error:
        if len(names) < 2 or names[True] == names[False]:
            raise
        raise ValueError(
            "The two branches of cond leave different things behind: "
            f"{sorted(names[True] - names[False])} only where true, "
            f"{sorted(names[False] - names[True])} only where false. Add the same losses, "
            "summaries and state in both."
        ) from error
    absorb(frame, left)
    return result


def value_and_grad(
    body: Callable[..., Any], argnums: int | tuple[int, ...] = 0
) -> Callable[..., Any]:
    """Returns a function that gives (value, gradient) with respect to its arguments."""

    def transform(carrying: Any) -> Any:
        def call(*args: Any) -> Any:
            (value, left), gradient = jax.value_and_grad(carrying, argnums, has_aux=True)(*args)
            return (value, gradient), left

        return call

    return _carrying(body, transform)


def shard_map(
    body: Callable[..., Any],
    *,
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    axis_names: Iterable[str] | None = None,
    layer: Module | None = None,
    parts: Parts | None = None,
    around: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    """Runs `body` on each device's shard. Losses and summaries merge over the manual mesh axes.

    The parameters and variables of the calling module, or of the one child `layer` that the body
    calls, go in explicitly: replicated, or as `parts` says. The random key is the same on every
    device. Outputs and writes of state have no stated reduction, and are refused: return them from
    the body instead. `around` wraps the pure body, as for scan().
    """
    axes = tuple(axis_names if axis_names is not None else mesh.axis_names)

    def call(*args: Any) -> Any:
        frame = require_frame("shard_map")
        owner = layer or frame.module
        params, variables = state_below(frame, owner)
        crossing = Crossing.of(frame, owner, {**params, **variables}, parts or Whole())

        def local(params: Arrays, variables: Arrays, key: Any, *inner_args: Any) -> Any:
            inner = frame.scope.inner(
                parameters={**frame.scope.parameters, **crossing.seen(params)},
                variables={**frame.scope.variables, **crossing.seen(variables)},
                key=key,
            )
            result, left = run(frame, inner, body, *inner_args)
            return result, left.across(axes)

        specs = [{path: crossing.specs[path] for path in state} for state in (params, variables)]
        own = (*specs, PartitionSpec())
        given = in_specs if type(in_specs) is tuple else (in_specs,) * len(args)
        mapped = jax.shard_map(
            around(local) if around is not None else local,
            mesh=mesh,
            in_specs=(*own, *given),
            out_specs=(out_specs, PartitionSpec()),
            axis_names=set(axes),
            check_vma=False,
        )
        result, left = mapped(params, variables, frame.scope.key, *args)
        absorb(frame, left)
        return result

    return call


def _carrying(body: Callable[..., Any], transform: Callable[[Any], Any]) -> Callable[..., Any]:
    """Applies a JAX transformation to a body, and lets its side outputs out."""

    def call(*args: Any) -> Any:
        frame = require_frame("A transformation")

        def carrying(*inner_args: Any) -> Any:
            return run(frame, frame.scope.inner(), body, *inner_args)

        result, left = transform(carrying)(*args)
        absorb(frame, left)
        return result

    return call
