"""How state and side outputs cross the border of a transformation: in by scope, out as a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from dovetail.module.context import Arrays, Frame, Scope, running
from dovetail.module.module import Module
from dovetail.module.outputs import SideOutputs
from dovetail.module.specs import ParameterSpec, VariableSpec


@jax.tree_util.register_dataclass
@dataclass
class Carried:
    """What a body leaves behind: side outputs, and the state that it wrote."""

    side: SideOutputs
    variables: Arrays
    cache: Arrays

    def names(self) -> set[str]:
        """Returns the paths of everything here."""
        side = self.side
        return {*side.losses, *side.summaries, *side.outputs, *self.variables, *self.cache}

    def across(self, axes: tuple[str, ...]) -> Carried:
        """Combines over the devices of manual mesh axes; state has no rule for that."""
        written = sorted([*self.variables, *self.cache])
        if written:
            raise ValueError(
                f"State was written inside shard_map: {written}. Which device's value to keep is "
                "not stated: return it from the function, and assign it outside."
            )
        return Carried(self.side.across(axes), {}, {})


def run(frame: Frame, inner: Scope, body: Callable[..., Any], *args: Any) -> tuple[Any, Carried]:
    """Runs a body in a scope of its own, and returns what it leaves behind beside its result."""
    variables, cache = dict(inner.variables), dict(inner.cache)
    with running(Frame(inner, frame.module, frame.call_path)):
        result = body(*args)
    frame.scope.drawn_inside.update(inner.draws)
    return result, Carried(
        inner.outputs, _written(inner.variables, variables), _written(inner.cache, cache)
    )


def absorb(frame: Frame, left: Carried) -> None:
    """Hands what a body left behind to the scope around it."""
    scope = frame.scope
    if left.names():
        scope.check_trace(f"What {sorted(left.names())} left behind")
    scope.outputs.merge(left.side)
    scope.variables.update(left.variables)
    scope.cache.update(left.cache)
    # Only now, so that a body that JAX traces twice draws the same keys both times.
    scope.draws.update(scope.drawn_inside)
    scope.drawn_inside.clear()


def state_below(frame: Frame, module: Module) -> tuple[Arrays, Arrays]:
    """Returns the parameters and variables of a module and all below it, as far as they were given.

    What is missing is reported where it is read, with the path of the module that asks.
    """
    scope = frame.scope
    params, variables = (
        {path: source[path] for path in scope.tree.specs(kind, module) if path in source}
        for kind, source in ((ParameterSpec, scope.parameters), (VariableSpec, scope.variables))
    )
    return params, variables


def _written(now: Arrays, before: Arrays) -> Arrays:
    return {path: value for path, value in now.items() if before.get(path) is not value}
