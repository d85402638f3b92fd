"""Module: written like ordinary object code, run as a pure function.

Children and specs are assigned in `__init__` and used in methods as attributes. The arrays are in
flat dicts keyed by path; `functional()` provides them to the methods while they run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, Component, ConfigError, T_co, did_you_mean
from dovetail.module.context import Frame, current_frame, draw_key, join, require_frame, running
from dovetail.module.side_outputs import Loss, Mean, merge_into
from dovetail.module.specs import ParameterSpec, Spec, VariableSpec, in_dtype

M = TypeVar("M", bound="Module")


@dataclass(frozen=True)
class Edge:
    """A child of a module: whether it is transparent (`wraps()`) or repeated."""

    module: Module
    transparent: bool = False
    count: int | None = None
    axis: str = ""
    active: int | None = None


class Module(Component):
    """A module of a model: children, parameters, variables, and methods that compute."""

    class Config(Component.Config[T_co], Generic[T_co]):
        # The dtype that parameters are cast to when they are read; None means the parent's.
        dtype: str | None = None

    _specs: dict[str, Spec]
    _repeat: tuple[int | None, str, int | None] = (None, "", None)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Creates the dict of specs before `__init__` assigns to it."""
        self = super().__new__(cls)
        object.__setattr__(self, "_specs", {})
        return self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Makes every public method run in its module's frame."""
        super().__init_subclass__(**kwargs)
        for name, member in list(vars(cls).items()):
            if inspect.isfunction(member) and (name == "__call__" or not name.startswith("_")):
                setattr(cls, name, _in_own_frame(member))

    # For use in methods.

    @property
    def training(self) -> bool:
        """Whether the model is being trained, so that dropout and the like are active."""
        return require_frame("module.training").scope.training

    def random_key(self, name: str = "key") -> jax.Array:
        """Returns a random key of this call path; each call returns another one."""
        return draw_key(self._frame("A random key"), name)

    def add_loss(self, name: str, total: Any, weight: Any) -> None:
        """Adds a loss as two scalars (sum, weight). The learner normalizes it over the step."""
        frame = self._writing("add_loss", name)
        loss = Loss(_scalar(total, frame.local(name)), _scalar(weight, frame.local(name)))
        merge_into(frame.scope.outputs.losses, {frame.local(name): loss})

    def add_summary(self, name: str, value: Any, weight: Any = 1.0) -> None:
        """Adds a metric to log: a weighted mean, or a typed value with its own reduction."""
        frame = self._writing("add_summary", name)
        is_typed = hasattr(value, "merge") and hasattr(value, "reduce")
        summary = value if is_typed else Mean(_precise(value) * weight, _precise(weight))
        # A metric must not contribute to gradients (and pmax has no derivative).
        summary = jax.lax.stop_gradient(summary)
        merge_into(frame.scope.outputs.summaries, {frame.local(name): summary})

    def add_output(self, name: str, value: Any) -> None:
        """Adds a named value; through a scan it is stacked over the layers."""
        frame = self._writing("add_output", name)
        frame.scope.outputs.add_output(frame.local(name), value)

    def read_cache(self, name: str) -> Any | None:
        """Returns the cache entry of this call path, or None."""
        frame = self._frame("The cache")
        frame.check_entered()
        return frame.scope.cache.get(frame.local(name))

    def write_cache(self, name: str, value: Any) -> None:
        """Writes a cache entry, for later calls on the same sequence."""
        frame = self._writing("write_cache", name)
        frame.check_entered()
        frame.scope.cache[frame.local(name)] = value

    # Internal to dovetail.module.

    @property
    def compute_dtype(self) -> str | None:
        """The dtype in which this module's config reads parameters."""
        return self.config.dtype

    def edges(self) -> dict[str, Edge]:
        """Returns the children by name, those in lists and dicts by `name/0` and `name/key`."""
        wrapped = {name for name, field in type(self).Config.fields().items() if field.wraps}
        return {
            path: Edge(child, path in wrapped, *child._repeat)
            for name, value in vars(self).items()
            for path, child in _modules_inside(value, name)
        }

    def own_specs(self) -> dict[str, Spec]:
        """Returns the specs that this module itself declares."""
        return self._specs

    def refers_to(self, module: Module) -> bool:
        """Says whether this module is a reference to another (see Shared)."""
        return False

    def __setattr__(self, name: str, value: Any) -> None:
        """Adds a child or a spec; in a running method, assigns a variable."""
        frame = current_frame()
        if isinstance(value, Spec):
            self._declare(name, value)
        elif name in self._specs:
            self._assign_variable(name, value)
        elif frame is not None and frame.scope.tree.holds(self):
            raise RuntimeError(
                f"{type(self).__name__}.{name} was assigned while the model runs, which would leak "
                "a tracer. Declare a variable() in __init__, or use write_cache, add_output or the "
                "method's result."
            )
        else:
            object.__setattr__(self, name, _without_specs(value, f"{type(self).__name__}.{name}"))

    def __getattr__(self, name: str) -> Any:
        """Reads a parameter or variable from the current scope."""
        spec = self.__dict__.get("_specs", {}).get(name)
        if spec is not None:
            return _read(self, name, spec)
        if name.startswith("__"):
            raise AttributeError(name)
        known = [*self.__dict__.get("_specs", {}), *(key for key in vars(self) if key[0] != "_")]
        raise AttributeError(f"{type(self).__name__} has no {name!r}. {did_you_mean(name, known)}")

    def _declare(self, name: str, spec: Spec) -> None:
        if hasattr(type(self), name):
            raise ConfigError(
                f"{type(self).__name__}.{name} is already a method or property, which would hide a "
                "parameter of that name. Rename the parameter."
            )
        self.__dict__.pop(name, None)
        self._specs[name] = spec

    def _assign_variable(self, name: str, value: Any) -> None:
        if not isinstance(self._specs[name], VariableSpec):
            raise RuntimeError(f"{name!r} is a parameter: only the learner changes it.")
        frame = self._writing("Assigning the variable", name)
        path, variables = join(frame.scope.tree.node(self).path, name), frame.scope.variables
        old, new = _given(variables, path, "variable"), jnp.asarray(value)
        if old.shape != new.shape:
            raise ValueError(
                f"The variable {path!r} has the shape {old.shape}, and was assigned a value of "
                f"{new.shape}. A variable keeps its shape."
            )
        variables[path] = new.astype(old.dtype)

    def _frame(self, what: str) -> Frame:
        return require_frame(what).enter(self)

    def _writing(self, what: str, name: str) -> Frame:
        frame = self._frame(what)
        frame.scope.check_trace(f"{what} {frame.local(name)!r}")
        return frame


def repeated(module: M, count: int, axis: str = "layers", *, active: int | None = None) -> M:
    """Declares a repeated child: its parameters are stacked. Call it in scan, vmap or ragged_vmap.

    Args:
        module: the child.
        count: how many copies.
        axis: the logical name of the leading axis.
        active: how many of the copies one token uses, if not all (routed experts).
    """
    if count < 1:
        raise ConfigError(f"A child is repeated at least once, got {count}.")
    if module._repeat[0] is not None:
        raise ConfigError(
            f"This {type(module).__name__} is repeated already. To repeat a group, repeat the "
            "module that holds it."
        )
    # Bypasses Module.__setattr__, which is for children and specs.
    object.__setattr__(module, "_repeat", (count, axis, active))
    return module


def _in_own_frame(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method so that it runs in its own module's frame."""
    may_return_none = "None" in str(method.__annotations__.get("return", ""))

    @functools.wraps(method)
    def call(self: Module, *args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None or frame.module is self:
            return method(self, *args, **kwargs)
        own = frame.enter(self)
        with running(own):
            result = method(self, *args, **kwargs)
            if result is None and method.__name__ == "__call__" and not may_return_none:
                raise ConfigError(
                    f"{type(self).__name__}.__call__ returned None. Does it end with `return`?"
                )
        return _stepwise(result, own) if inspect.isgenerator(result) else result

    return call


def _stepwise(generator: Iterator[Any], frame: Frame) -> Iterator[Any]:
    """Runs each step of a generator in its module's frame."""
    ended = object()
    while True:
        with running(frame):
            item = next(generator, ended)
        if item is ended:
            return
        yield item


def _modules_inside(value: Any, path: str) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _modules_inside(item, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _modules_inside(item, f"{path}/{index}")


def _without_specs(value: Any, where: str) -> Any:
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple) and any(isinstance(item, Spec) for item in items):
        raise ConfigError(
            f"{where}: a parameter or variable is in a list or dict, where it would not be found. "
            "Assign each to an attribute of its own, or to a child module."
        )
    return value


def _read(module: Module, name: str, spec: Spec) -> Any:
    frame = require_frame(f"Reading {type(module).__name__}.{name}")
    frame.check_entered()
    scope, node = frame.scope, frame.scope.tree.node(module)
    path = join(node.path, name)
    if not isinstance(spec, ParameterSpec):
        return _given(scope.variables, path, "variable")
    return in_dtype(_given(scope.parameters, path, "parameter"), spec.read_dtype(node.dtype))


def _given(source: Any, path: str, kind: str) -> Any:
    if path not in source:
        raise ConfigError(
            f"The {kind} {path!r} was not given to functional(). {did_you_mean(path, source)}"
        )
    return source[path]


def _scalar(value: Any, where: str) -> jax.Array:
    array = _precise(value)
    if array.ndim:
        raise ValueError(
            f"{where}: a loss is a pair of scalars (sum, weight), got the shape {array.shape}."
        )
    return array


def _precise(value: Any) -> jax.Array:
    """Returns an array of at least float32, since many of them are summed."""
    array = jnp.asarray(value)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


# Last, because subclassing Module needs the helpers above.
class Shared(Module):
    """A reference to another module by path, for tied weights. It has no parameters."""

    class Config(Module.Config[Any]):
        """The path of the module, such as `decoder/embedding`, relative to a parent of this one."""

        path: str = REQUIRED

        def clone(self, **values: Any) -> Self:
            """Returns a copy; ignores sizes that a parent sets, since the target has its own."""
            return super().clone(**{name: values[name] for name in values if name == "path"})

    # Configs check the interface of a child; a reference satisfies any.
    stands_for_any: ClassVar[bool] = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.target_path = config.path

    def refers_to(self, module: Module) -> bool:
        """Says whether `module` is the target."""
        return self._target() is module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the target."""
        return self._target()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute or a method of the target."""
        if name.startswith("_") or "target_path" not in vars(self):
            raise AttributeError(name)
        found = getattr(self._target(), name)
        return self._entered(found) if callable(found) and not isinstance(found, Module) else found

    def _target(self) -> Any:
        tree = require_frame(f"Shared({self.target_path!r})").scope.tree
        return tree.resolve(self.target_path, self)

    def _entered(self, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with running(require_frame("A shared module").enter(self)):
                return method(*args, **kwargs)

        return call
