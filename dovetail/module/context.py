"""The invocation context: where a module finds its state while its methods run.

`functional()` opens a scope; methods that call methods push and pop frames on top of it. Each frame knows two
paths: the owner's (where parameters and variables live) and the call's (for cache, random keys and side
outputs). A transformation runs its body in a scope of its own, whose side outputs it carries across.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
from jax.extend.core import get_opaque_trace_state

from dovetail.module.outputs import SideOutputs
from dovetail.module.specs import fold_in_path

if TYPE_CHECKING:
    from dovetail.module.module import Module
    from dovetail.module.tree import Tree

Arrays = dict[str, Any]


@dataclass
class Scope:
    """The state that one trace of a model reads and writes."""

    tree: Tree
    parameters: Mapping[str, Any]
    variables: Arrays
    cache: Arrays
    key: jax.Array | None
    training: bool
    outputs: SideOutputs = field(default_factory=SideOutputs)
    trace: Any = field(default_factory=get_opaque_trace_state)
    draws: dict[str, int] = field(default_factory=dict)

    def inner(self, **changes: Any) -> Scope:
        """Returns the scope of a transformation's body: the same state, its own side outputs."""
        fresh: dict[str, Any] = {
            "variables": dict(self.variables),
            "cache": dict(self.cache),
            "outputs": SideOutputs(),
            "trace": get_opaque_trace_state(),
            "draws": dict(self.draws),
        }
        return replace(self, **(fresh | changes))

    def check_trace(self, what: str) -> None:
        """Refuses a write from inside a transformation that would not carry it out again."""
        if get_opaque_trace_state() != self.trace:
            raise RuntimeError(
                f"{what} inside a plain jax transformation (jax.lax.scan, jax.vmap, jax.checkpoint, "
                "jax.lax.cond, jax.grad, jax.jit, ...) would be lost. Use the one of the same name from "
                "dovetail.module (scan, vmap, checkpoint, cond, value_and_grad, shard_map)."
            )


@dataclass(frozen=True)
class Frame:
    """One module whose method is running."""

    scope: Scope
    module: Module
    call_path: str

    def path_of_call(self, module: Module) -> str:
        """Returns the call path of a method of `module`, called from this frame."""
        tree = self.scope.tree
        here, there = tree.node(self.module).path, tree.node(module).path
        if there == here or self.module.refers_to(module):
            return self.call_path
        if not here or there.startswith(f"{here}/"):
            return join(self.call_path, there[len(here) :].lstrip("/"))
        return join(self.call_path, there)

    def local(self, name: str) -> str:
        """Returns the call path of something that this frame's module names."""
        return join(self.call_path, name)


_current: ContextVar[Frame | None] = ContextVar("dovetail_frame", default=None)


def current_frame() -> Frame | None:
    """Returns the innermost running frame of this thread, if any."""
    return _current.get()


def require_frame(what: str) -> Frame:
    """Returns the innermost frame, or explains that there is none."""
    frame = _current.get()
    if frame is None:
        raise RuntimeError(
            f"{what} works only while the model runs inside functional(model, params, inputs)."
        )
    return frame


@contextmanager
def running(frame: Frame) -> Iterator[Frame]:
    """Makes a frame the innermost one."""
    token = _current.set(frame)
    try:
        yield frame
    finally:
        _current.reset(token)


def random_key(name: str) -> jax.Array:
    """Returns a key that depends on the call path, the name and how often it was asked for."""
    frame = require_frame("A random key")
    path = frame.local(name)
    if frame.scope.key is None:
        raise ValueError(
            f"{path}: a random key was asked for, but functional() was given none. Pass key=..., or "
            "training=False where nothing should be random."
        )
    count = frame.scope.draws.get(path, 0)
    frame.scope.draws[path] = count + 1
    return fold_in_path(frame.scope.key, path if count == 0 else f"{path}#{count}")


def join(*pieces: str) -> str:
    """Joins the pieces of a path, leaving out empty ones."""
    return "/".join(piece for piece in pieces if piece)
