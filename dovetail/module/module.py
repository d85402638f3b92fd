"""Module: reads like ordinary object code, and is functional underneath.

Children and specs are assigned in `__init__` and used in methods as attributes. The arrays live outside, in
flat dicts keyed by path, and `functional()` lends them to the methods while they run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax

from dovetail.config import Part, did_you_mean
from dovetail.config.base import T_co
from dovetail.module import context
from dovetail.module.context import Frame, current_frame, require_frame, running
from dovetail.module.outputs import Loss, Mean, merge_into
from dovetail.module.specs import ParameterSpec, Spec, VariableSpec

M = TypeVar("M", bound="Module")


@dataclass(frozen=True)
class Edge:
    """How a parent holds a child."""

    module: Module
    transparent: bool = False
    count: int | None = None
    axis: str = ""


@dataclass(frozen=True)
class _Repeated:
    module: Module
    count: int
    axis: str


class Module(Part):
    """A part of a model: children, parameters, variables, and methods that compute."""

    class Config(Part.Config[T_co], Generic[T_co]):
        """What every module can be told."""

        # The type that parameters are cast to when they are read, here and below; None: the parent's.
        dtype: str | None = None

    _edges: dict[str, Edge]
    _specs: dict[str, Spec]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Prepares the tables before any `__init__` assigns to them."""
        self = super().__new__(cls)
        object.__setattr__(self, "_edges", {})
        object.__setattr__(self, "_specs", {})
        return self

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Makes every public method run in its module's frame."""
        super().__init_subclass__(**kwargs)
        for name, member in list(vars(cls).items()):
            if inspect.isfunction(member) and (name == "__call__" or not name.startswith("_")):
                setattr(cls, name, _in_own_frame(member))

    # What methods may use while they run.

    @property
    def training(self) -> bool:
        """Whether the model is being trained (dropout and kin are active)."""
        return require_frame("module.training").scope.training

    def random_key(self, name: str = "key") -> jax.Array:
        """Returns a random key of this call path; asking again gives another."""
        return context.random_key(name)

    def add_loss(self, name: str, total: Any, weight: Any) -> None:
        """Adds a loss as (sum, weight). The learner normalises it over the whole step."""
        frame = self._writing("add_loss")
        merge_into(frame.scope.outputs.losses, {frame.local(name): Loss(total, weight)})

    def add_summary(self, name: str, value: Any, weight: Any = 1.0) -> None:
        """Adds a figure to be logged: a weighted mean, or a summary that says how it merges."""
        frame = self._writing("add_summary")
        is_typed = hasattr(value, "merge") and hasattr(value, "reduce")
        summary = value if is_typed else Mean(jax.numpy.asarray(value) * weight, jax.numpy.asarray(weight))
        merge_into(frame.scope.outputs.summaries, {frame.local(name): summary})

    def add_output(self, name: str, value: Any) -> None:
        """Adds a named value; through a scan it is stacked over the layers."""
        frame = self._writing("add_output")
        frame.scope.outputs.add_output(frame.local(name), value)

    def read_cache(self, name: str) -> Any | None:
        """Returns what an earlier call kept under this call path, or None."""
        frame = require_frame("The cache")
        return frame.scope.cache.get(frame.local(name))

    def write_cache(self, name: str, value: Any) -> None:
        """Keeps a value for later calls of the same sequence."""
        frame = self._writing("write_cache")
        frame.scope.cache[frame.local(name)] = value

    # What the machinery asks.

    @property
    def compute_dtype(self) -> str | None:
        """The type that this module's config asks parameters to be read in."""
        dtype: str | None = self.config.dtype
        return dtype

    def edges(self) -> dict[str, Edge]:
        """Returns the children by name."""
        return self._edges

    def own_specs(self) -> dict[str, Spec]:
        """Returns the specs that this module itself declares."""
        return self._specs

    def refers_to(self, module: Module) -> bool:
        """Says whether this module stands for another (see Shared)."""
        return False

    def __setattr__(self, name: str, value: Any) -> None:
        """Takes in children and specs; inside a method, assigns a variable."""
        if isinstance(value, Spec):
            self._specs[name] = value
        elif name in self._specs:
            self._assign_variable(name, value)
        else:
            self._take_children(name, value)
            object.__setattr__(self, name, value.module if isinstance(value, _Repeated) else value)

    def __getattr__(self, name: str) -> Any:
        """Reads a parameter or variable from the running scope."""
        spec = self.__dict__.get("_specs", {}).get(name)
        if spec is not None:
            return _read(self, name, spec)
        if name.startswith("__"):
            raise AttributeError(name)
        known = [*self.__dict__.get("_specs", {}), *(key for key in vars(self) if key[0] != "_")]
        raise AttributeError(f"{type(self).__name__} has no {name!r}. {did_you_mean(name, known)}")

    def _take_children(self, name: str, value: Any) -> None:
        wraps = name in {field.name for field in self.config_fields() if field.wraps}
        if isinstance(value, _Repeated):
            self._edges[name] = Edge(value.module, wraps, value.count, value.axis)
        elif isinstance(value, Module):
            self._edges[name] = Edge(value, wraps)
        elif isinstance(value, dict):
            self._edges |= {f"{name}/{k}": Edge(v) for k, v in value.items() if isinstance(v, Module)}
        elif isinstance(value, list | tuple):
            found = [(i, item) for i, item in enumerate(value) if isinstance(item, Module)]
            self._edges |= {f"{name}/{i}": Edge(item) for i, item in found}

    def config_fields(self) -> list[Any]:
        """Returns the fields of the config class."""
        return list(type(self).Config.fields().values())

    def _assign_variable(self, name: str, value: Any) -> None:
        if not isinstance(self._specs[name], VariableSpec):
            raise RuntimeError(f"{name!r} is a parameter: the learner changes it, a method cannot.")
        frame = self._writing(f"Assigning the variable {name!r}")
        path = context.join(frame.scope.tree.node(self).path, name)
        frame.scope.variables[path] = value

    def _writing(self, what: str) -> Frame:
        frame = require_frame(what)
        frame.scope.check_trace(what)
        return frame


def repeated(module: M, count: int, axis: str = "layers") -> M:
    """Declares a child that is repeated: its parameters get a leading axis. Use with scan or vmap."""
    if count < 1:
        raise ValueError(f"A child is repeated at least once, got {count}.")
    return _Repeated(module, count, axis)  # type: ignore[return-value]  # unwrapped by __setattr__


def _in_own_frame(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method so that it runs in its own module's frame, and errors name that module."""

    @functools.wraps(method)
    def call(self: Module, *args: Any, **kwargs: Any) -> Any:
        frame = current_frame()
        if frame is None or frame.module is self:
            return method(self, *args, **kwargs)
        with running(Frame(frame.scope, self, frame.path_of_call(self))) as inner:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                note_path(error, inner)
                raise

    return call


def note_path(error: Exception, frame: Frame) -> None:
    """Adds the path of the innermost module to an error that passes by."""
    if not getattr(error, "_dovetail_noted", False):
        where = frame.call_path or "(the root)"
        error.add_note(f"in the module {where} ({type(frame.module).__name__})")
        error._dovetail_noted = True  # type: ignore[attr-defined]


def _read(module: Module, name: str, spec: Spec) -> Any:
    scope = require_frame(f"Reading {type(module).__name__}.{name}").scope
    node = scope.tree.node(module)
    path = context.join(node.path, name)
    source = scope.parameters if isinstance(spec, ParameterSpec) else scope.variables
    if path not in source:
        kind = "parameter" if isinstance(spec, ParameterSpec) else "variable"
        raise KeyError(f"The {kind} {path!r} was not given. {did_you_mean(path, source)}")
    value = source[path]
    lower = isinstance(spec, ParameterSpec) and node.dtype is not None and not spec.keeps_dtype
    return value.astype(node.dtype) if lower else value
