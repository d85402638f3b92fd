"""JAX's transformations for modules, carrying state and side outputs.

Inside a plain `jax.lax.scan`, a loss that a module adds would be a leaked tracer. These functions
run the body in an inner scope and return its effects as values, each with a stated reduction:
losses and summaries merge over layers, copies and devices; outputs are stacked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.module.context import Arrays, require_frame
from dovetail.module.effects import Effects, apply_effects, run_in_scope
from dovetail.module.module import Module
from dovetail.module.stacked import LoopedLayer, StackedLayers


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
    """Runs `body` once per layer of a repeated child, with that layer's slice of its arrays.

    With `times`, the child is not repeated: it runs that often with the same parameters and
    variables. Its cache is still stacked, one entry per iteration.

    Variables and an existing cache are in the carry and are updated in place. A cache that the body
    creates is stacked. Losses and summaries merge over the layers; outputs are stacked.

    Args:
        layer: the repeated child that the body calls.
        body: from (carry, x) to (carry, y), as for jax.lax.scan.
        init: the initial carry.
        xs: further inputs, sliced along their first axis.
        unroll: how many layers one loop iteration holds.
        around: wraps the pure body, for example `functools.partial(jax.checkpoint, policy=...)`.
        times: how often a child that is not repeated runs.
        first: the index of the first layer, for random keys, where this is a slice of a longer
            stack.
    """
    frame = require_frame("scan")
    layers = (
        StackedLayers.of(frame, layer) if times is None else LoopedLayer.times(frame, layer, times)
    )

    def step(carry: Any, item: Any) -> Any:
        value, variables_L, cache_L = carry
        index, params, x = item
        variables = layers.slice_variables(variables_L, index)
        cache = layers.slice_layer(cache_L, index)
        inner = layers.scope(first + index if index is not None else None, params, variables, cache)
        (value, y), effects = run_in_scope(frame, inner, body, value, x)
        created = layers.check(effects)
        variables_L = layers.update_variables(variables_L, effects.variables, index)
        cache_L = layers.update_layer(cache_L, effects.cache, index)
        return (value, variables_L, cache_L), (y, effects.side, created)

    # Without random keys and state there is no index, so that a plain stack lowers to a plain scan.
    needs_index = frame.scope.key is not None or layers.variables or layers.cache
    index = jnp.arange(layers.count) if needs_index else None
    carry = (init, layers.variables, layers.cache)
    step = around(step) if around is not None else step
    (result, variables, cache), (ys, side, created) = jax.lax.scan(
        step, carry, (index, layers.params, xs), layers.count, unroll=unroll
    )
    apply_effects(frame, Effects(side.reduce(), variables, cache | created))
    return result, ys


def vmap(layer: Module, body: Callable[..., Any], *args: Any, in_axes: Any = 0) -> Any:
    """Runs `body` for all copies of a repeated child at once.

    Losses and summaries merge over the copies; outputs and a created cache are stacked.
    """
    frame = require_frame("vmap")
    layers = StackedLayers.of(frame, layer)
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)

    def one(index: Any, params: Arrays, variables: Arrays, cache: Arrays, *rest: Any) -> Any:
        inner = layers.scope(index, params, variables, cache)
        result, effects = run_in_scope(frame, inner, body, *rest)
        created = layers.check(effects)
        return result, Effects(effects.side, effects.variables, effects.cache | created)

    index = jnp.arange(layers.count) if frame.scope.key is not None else None
    mapped = jax.vmap(one, in_axes=(0, 0, 0, 0, *axes), axis_size=layers.count)
    result, effects = mapped(index, layers.params, layers.variables, layers.cache, *args)
    apply_effects(frame, Effects(effects.side.reduce(), effects.variables, effects.cache))
    return result


def checkpoint(
    body: Callable[..., Any], *, policy: Any = None, prevent_cse: bool = True
) -> Callable[..., Any]:
    """Recomputes `body` in the backward pass, except for what the policy saves."""
    return _with_effects(
        body, functools.partial(jax.checkpoint, policy=policy, prevent_cse=prevent_cse)
    )


def take_outputs(name: str, body: Callable[..., Any], *args: Any) -> tuple[Any, list[Any]]:
    """Runs `body`; returns its result, and the outputs of this name that it adds, in order.

    So a layer can pass on what a module deep inside another one computes: the keys and values of an
    attention, for example. Other side outputs go to the caller as usual.
    """
    frame = require_frame("take_outputs")
    result, effects = run_in_scope(frame, frame.scope.inner(), body, *args)
    outputs = effects.side.outputs
    paths = [path for path in outputs if path.rpartition("/")[2] == name]
    taken = [outputs.pop(path) for path in paths]
    apply_effects(frame, effects)
    return result, taken


def run_in_eval_mode(body: Callable[..., Any], *args: Any) -> Any:
    """Runs `body` with `training=False`, and discards its side outputs and state writes.

    For a frozen model inside a trained one, such as the teacher in distillation.
    """
    frame = require_frame("run_in_eval_mode")
    result, _ = run_in_scope(frame, frame.scope.inner(training=False), body, *args)
    return result


def cond(
    predicate: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], *args: Any
) -> Any:
    """Runs one of two branches. Both must add the same side outputs and write the same state."""
    frame = require_frame("cond")
    names: dict[bool, set[str]] = {}

    def branch(body: Callable[..., Any], which: bool) -> Callable[..., Any]:
        def call(*inner_args: Any) -> Any:
            result, effects = run_in_scope(frame, frame.scope.inner(), body, *inner_args)
            names[which] = effects.names()
            return result, effects

        return call

    try:
        result, effects = jax.lax.cond(
            predicate, branch(if_true, True), branch(if_false, False), *args
        )
    except TypeError as error:
        if len(names) < 2 or names[True] == names[False]:
            raise
        raise ValueError(
            "The two branches of cond have different effects: "
            f"{sorted(names[True] - names[False])} only where true, "
            f"{sorted(names[False] - names[True])} only where false. Add the same losses, "
            "summaries and state in both."
        ) from error
    apply_effects(frame, effects)
    return result


def value_and_grad(
    body: Callable[..., Any], argnums: int | tuple[int, ...] = 0
) -> Callable[..., Any]:
    """Returns a function that computes (value, gradient) with respect to its arguments."""

    def transform(pure: Any) -> Any:
        def call(*args: Any) -> Any:
            (value, effects), gradient = jax.value_and_grad(pure, argnums, has_aux=True)(*args)
            return (value, gradient), effects

        return call

    return _with_effects(body, transform)


def _with_effects(body: Callable[..., Any], transform: Callable[[Any], Any]) -> Callable[..., Any]:
    """Applies a JAX transformation to a body as a pure function that also returns its effects."""

    def call(*args: Any) -> Any:
        frame = require_frame("A transformation")

        def pure(*inner_args: Any) -> Any:
            return run_in_scope(frame, frame.scope.inner(), body, *inner_args)

        result, effects = transform(pure)(*args)
        apply_effects(frame, effects)
        return result

    return call
