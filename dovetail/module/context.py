"""The invocation context: the state that a module reads and writes while its methods run.

`functional()` opens a scope, and each method call pushes a frame. A frame has two paths: the
module's (for parameters and variables) and the call's (for cache, random keys and side outputs). A
transformation runs its body in an inner scope, and carries its effects out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax

from dovetail.module.side_outputs import SideOutputs
from dovetail.module.specs import fold_in_path

if TYPE_CHECKING:
    from dovetail.module.module import Module
    from dovetail.module.tree import Tree

Arrays = dict[str, Any]


def _trace_state() -> Any:
    """Returns a value that differs between JAX traces. `jax.extend` is slow to import."""
    from jax.extend.core import get_opaque_trace_state

    return get_opaque_trace_state()


@dataclass
class Scope:
    """The state that one trace of a model reads and writes.

    Attributes:
        entered: ids of the repeated modules of which the scope has one layer's arrays.
        trace: the JAX trace in which the scope was opened; a write in another trace would be lost.
        draws: how many random keys were drawn, by call path.
        drawn_inside: the same in the bodies of transformations, before their effects are applied.
    """

    tree: Tree
    parameters: Mapping[str, Any]
    variables: Arrays
    cache: Arrays
    key: jax.Array | None
    training: bool
    outputs: SideOutputs = field(default_factory=SideOutputs)
    entered: frozenset[int] = frozenset()
    trace: Any = field(default_factory=_trace_state)
    draws: dict[str, int] = field(default_factory=dict)
    drawn_inside: dict[str, int] = field(default_factory=dict)

    def inner(self, **changes: Any) -> Scope:
        """Returns the scope of a transformation's body: the same state, new side outputs."""
        fresh: dict[str, Any] = {
            "variables": dict(self.variables),
            "cache": dict(self.cache),
            "outputs": SideOutputs(),
            "trace": _trace_state(),
            "draws": dict(self.draws),
            "drawn_inside": {},
        }
        return replace(self, **(fresh | changes))

    def check_trace(self, what: str) -> None:
        """Raises if a plain JAX transformation is active, which would lose a write."""
        if _trace_state() != self.trace:
            raise RuntimeError(
                f"{what} inside a plain jax transformation (jax.lax.scan, jax.vmap, "
                "jax.checkpoint, jax.lax.cond, jax.grad, jax.jit, ...) would be lost. Use the one "
                "of the same name from dovetail.module (scan, vmap, checkpoint, cond, "
                "value_and_grad, shard_map)."
            )


@dataclass(frozen=True)
class Frame:
    """A running method of a module."""

    scope: Scope
    module: Module
    call_path: str

    def enter(self, module: Module) -> Frame:
        """Returns the frame of a method of `module` that is called from this one."""
        if module is self.module:
            return self
        return Frame(self.scope, module, self._path_of_call(module))

    def local(self, name: str) -> str:
        """Returns the call path of a name in this frame's module."""
        return join(self.call_path, name)

    def check_entered(self) -> None:
        """Raises if a repeated module runs on the stacked arrays of all its layers."""
        for repeat in self.scope.tree.node(self.module).repeats:
            if id(repeat.module) not in self.scope.entered:
                where = self.scope.tree.node(repeat.module).attribute_path
                raise RuntimeError(
                    f"{where!r} is repeated {repeat.count} times, so its arrays are stacked. Call "
                    "it in the body of scan(layer, body, ...) or vmap(layer, body, ...) from "
                    "dovetail.module, which slice one layer's arrays."
                )

    def _path_of_call(self, module: Module) -> str:
        tree = self.scope.tree
        here, there = tree.node(self.module).attribute_path, tree.node(module).attribute_path
        if self.module.refers_to(module):
            return self.call_path
        if not here or there.startswith(f"{here}/"):
            return join(self.call_path, there[len(here) :].lstrip("/"))
        return join(self.call_path, there)


_current: ContextVar[Frame | None] = ContextVar("dovetail_frame", default=None)


def current_frame() -> Frame | None:
    """Returns the innermost running frame of this thread, if any."""
    return _current.get()


def current_path() -> str:
    """Returns the call path of the running module; '' for the root, and if none is running."""
    frame = _current.get()
    return "" if frame is None else frame.call_path


def require_frame(what: str) -> Frame:
    """Returns the innermost frame; raises if there is none."""
    frame = _current.get()
    if frame is None:
        raise RuntimeError(
            f"{what} works only while the model runs inside functional(model, params, inputs)."
        )
    return frame


@contextmanager
def running(frame: Frame) -> Iterator[Frame]:
    """Makes a frame the innermost one, and adds its path to exceptions."""
    token = _current.set(frame)
    try:
        yield frame
    except Exception as error:
        _note_path(error, frame)
        raise
    finally:
        _current.reset(token)


def draw_key(frame: Frame, name: str) -> jax.Array:
    """Returns a key derived from the call path, the name and the number of earlier draws."""
    path, scope = frame.local(name), frame.scope
    if scope.key is None:
        raise ValueError(
            f"{path}: a random key was requested, but functional() was given none. Pass key=..., "
            "or training=False if nothing should be random."
        )
    count = scope.draws.get(path, 0)
    scope.draws[path] = count + 1
    return fold_in_path(scope.key, path if count == 0 else f"{path}#{count}")


def join(*pieces: str) -> str:
    """Joins the pieces of a path, leaving out empty ones."""
    return "/".join(piece for piece in pieces if piece)


_NOTE = "in the module "


def _note_path(error: Exception, frame: Frame) -> None:
    """Adds the path of the innermost module to an exception."""
    if not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        where = frame.call_path or "(the root)"
        error.add_note(f"{_NOTE}{where} ({type(frame.module).__name__})")
