"""functional(): run a model as a pure function of its state; initialize(): make that state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax

from dovetail.module.context import Arrays, Frame, Scope, running
from dovetail.module.first_values import first_values
from dovetail.module.module import Module
from dovetail.module.outputs import SideOutputs
from dovetail.module.tree import Tree, parameter_specs, variable_specs

Losses = Literal["error", "return", "discard"]


@jax.tree_util.register_dataclass
@dataclass
class Outputs(SideOutputs):
    """Everything that a run of a model gives beside its result."""

    variables: Arrays | None = None
    cache: Arrays | None = None


def functional(
    module: Module,
    params: Mapping[str, Any],
    inputs: Any,
    *,
    variables: Mapping[str, Any] | None = None,
    cache: Mapping[str, Any] | None = None,
    key: jax.Array | None = None,
    training: bool = False,
    losses: Losses = "error",
    method: str = "__call__",
) -> tuple[Any, Outputs]:
    """Runs a method of a model with the given state, and returns (result, outputs).

    Args:
        module: the model, or any part of one; paths are relative to it.
        params: the parameters by path.
        inputs: the arguments: a tuple is positional, a dict is by name, anything else is the only
            one.
        variables: the variables by path; their new values are in `outputs.variables`.
        cache: what earlier calls kept; the new one is in `outputs.cache`.
        key: the source of all randomness; every module derives its own from its call path.
        training: whether dropout and kin are active.
        losses: what becomes of losses that modules add: "error" raises, since a loss that nobody
            takes is a silent mistake; "return" leaves them in `outputs.losses`; "discard" drops
            them.
        method: the method to call.
    """
    tree = Tree(module)
    scope = Scope(tree, params, dict(variables or {}), dict(cache or {}), key, training)
    args, kwargs = _arguments(inputs)
    with running(Frame(scope, module, "")):
        result = getattr(module, method)(*args, **kwargs)
    side = scope.outputs
    if side.losses and losses == "error":
        raise ValueError(
            f"The model added losses that nobody takes: {', '.join(sorted(side.losses))}. "
            'Call functional(..., losses="return") and use them, or say losses="discard".'
        )
    taken = side.losses if losses == "return" else {}
    return result, Outputs(taken, side.summaries, side.outputs, scope.variables, scope.cache)


def initialize(module: Module, key: jax.Array, shardings: Any = None) -> Arrays:
    """Makes the first parameters of a model, under jit, each on its own shards."""
    return first_values(parameter_specs(module), key, shardings)


def initialize_variables(module: Module, key: jax.Array, shardings: Any = None) -> Arrays:
    """Makes the first variables of a model."""
    return first_values(variable_specs(module), key, shardings)


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    if type(inputs) is tuple:
        return inputs, {}
    return (inputs,), {}
