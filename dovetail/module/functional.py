"""functional() runs a model as a pure function of its state; initialize() creates that state.

Arrays are initialized one by one, each by a jitted program that is cached by shape, dtype,
initializer and sharding. XLA compiles a random array on CPU slowly, as a loop: one program for all
of them takes longer to compile than the training step. Most arrays of a model share a few programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer

from dovetail.config import ConfigError
from dovetail.module.context import Arrays, Frame, Scope, running
from dovetail.module.module import Module
from dovetail.module.side_outputs import SideOutputs
from dovetail.module.specs import Spec, fold_in_numbers, path_numbers
from dovetail.module.tree import Tree, parameter_specs, variable_specs

Losses = Literal["error", "return", "discard"]


@jax.tree_util.register_dataclass
@dataclass
class Outputs(SideOutputs):
    """The side outputs of a run of a model, and its new state."""

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
        module: the model, or any module of one; paths are relative to it.
        params: the parameters by path.
        inputs: the arguments: a tuple is positional, a dict is by name, anything else is the only
            one.
        variables: the variables by path; their new values are in `outputs.variables`.
        cache: the cache that earlier calls wrote; the new one is in `outputs.cache`.
        key: the source of all randomness; every module derives its own from its call path.
        training: whether dropout and the like are active.
        losses: how to treat losses that modules add: "error" raises, since a loss that nobody uses
            is a silent mistake; "return" returns them in `outputs.losses`; "discard" drops them.
        method: the method to call.

    Raises:
        ConfigError: if the model reads a field that a batch among its inputs lacks.
    """
    tree = Tree(module)
    scope = Scope(tree, params, dict(variables or {}), dict(cache or {}), key, training)
    args, kwargs = _arguments(inputs)
    with _explain_missing_fields(module, args), running(Frame(scope, module, "")):
        result = getattr(module, method)(*args, **kwargs)
    side = scope.outputs
    if side.losses and losses == "error":
        raise ValueError(
            f"The model added losses that nobody uses: {', '.join(sorted(side.losses))}. "
            'Call functional(..., losses="return") and use them, or pass losses="discard".'
        )
    returned = side.losses if losses == "return" else {}
    return result, Outputs(returned, side.summaries, side.outputs, scope.variables, scope.cache)


@contextmanager
def _explain_missing_fields(module: Module, args: Sequence[Any]) -> Iterator[None]:
    """Turns the error of a model that reads what its batch lacks into a sentence.

    Everything that runs a model on a batch comes through here: step, plan, evaluation and loss.
    """
    try:
        yield
    except AttributeError as error:
        read: Any = error.obj
        if not dataclasses.is_dataclass(read) or type(read) not in map(type, args):
            raise  # a mistake within the model
        fields = [field.name for field in dataclasses.fields(read)]
        explained = ConfigError(
            f"model: {type(module).__name__} reads `{error.name}` of a batch, but it got "
            f"{type(read).__name__}, which has {', '.join(fields)}. Use an input whose batch "
            "has it, or another model."
        )
        for note in getattr(error, "__notes__", ()):  # the path of the module that reads it
            explained.add_note(note)
        raise explained from error


def initialize(
    module: Module, key: jax.Array, shardings: Mapping[str, Any] | None = None
) -> Arrays:
    """Initializes the parameters of a model, each directly on its own shards."""
    return _initialize(parameter_specs(module), key, shardings)


def initialize_variables(
    module: Module, key: jax.Array, shardings: Mapping[str, Any] | None = None
) -> Arrays:
    """Initializes the variables of a model."""
    return _initialize(variable_specs(module), key, shardings)


def _initialize(
    specs: Mapping[str, Spec], key: jax.Array, shardings: Mapping[str, Any] | None
) -> Arrays:
    seed: Any = jax.random.key_data(key)
    if not isinstance(seed, Tracer):
        seed = np.asarray(seed)  # a host value is the same on every process
    impl = jax.random.key_impl(key)
    return {
        path: _program(spec, impl, None if shardings is None else shardings[path])(
            seed, np.asarray(path_numbers(path), np.uint32)
        )
        for path, spec in specs.items()
    }


_programs: dict[Any, Callable[[Any, Any], jax.Array]] = {}


def _program(spec: Spec, impl: Any, sharding: Any) -> Callable[[Any, Any], jax.Array]:
    """Returns the jitted program that initializes arrays like this one."""
    shape = (spec.shape, spec.stacked, spec.fan_in, spec.fan_out, spec.dtype)
    init = (type(spec.init), repr(getattr(spec.init, "config", spec.init)))
    cache_key = (shape, init, str(impl), sharding)
    if cache_key not in _programs:

        def make(seed: Any, numbers: Any) -> jax.Array:
            key = jax.random.wrap_key_data(seed, impl=impl)
            return spec.from_key(fold_in_numbers(key, numbers))

        _programs[cache_key] = jax.jit(make, out_shardings=sharding)
    return _programs[cache_key]


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    if type(inputs) is tuple:
        return inputs, {}
    return (inputs,), {}
