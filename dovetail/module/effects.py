"""How state and side outputs cross a JAX transformation.

A transformation runs its body in an inner scope. Its writes are returned as `Effects`, a
pytree beside the result, and are then applied to the outer scope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from dovetail.module.context import Arrays, Frame, Scope, running
from dovetail.module.module import Module
from dovetail.module.side_outputs import SideOutputs
from dovetail.module.specs import ParameterSpec, VariableSpec


@jax.tree_util.register_dataclass
@dataclass
class Effects:
    """The effects of a body: side outputs, and the variables and cache entries that it wrote."""

    side: SideOutputs
    variables: Arrays
    cache: Arrays

    def names(self) -> set[str]:
        """Returns the paths of all effects."""
        side = self.side
        return {*side.losses, *side.summaries, *side.outputs, *self.variables, *self.cache}

    def all_reduce(self, axes: tuple[str, ...]) -> Effects:
        """Reduces side outputs over manual mesh axes. State writes have no reduction."""
        written = sorted([*self.variables, *self.cache])
        if written:
            raise ValueError(
                f"State was written inside shard_map: {written}. Devices may disagree about its "
                "value: return it from the body, and assign it outside."
            )
        return Effects(self.side.all_reduce(axes), {}, {})


def run_in_scope(
    frame: Frame, inner: Scope, body: Callable[..., Any], *args: Any
) -> tuple[Any, Effects]:
    """Runs a body in an inner scope, and returns its result and its effects."""
    variables, cache = dict(inner.variables), dict(inner.cache)
    with running(Frame(inner, frame.module, frame.call_path)):
        result = body(*args)
    frame.scope.drawn_inside.update(inner.draws)
    return result, Effects(
        inner.outputs, _written(inner.variables, variables), _written(inner.cache, cache)
    )


def apply_effects(frame: Frame, effects: Effects) -> None:
    """Applies the effects of a body to the scope of the caller."""
    scope = frame.scope
    if effects.names():
        scope.check_trace(f"Applying the effects {sorted(effects.names())}")
    scope.outputs.merge(effects.side)
    scope.variables.update(effects.variables)
    scope.cache.update(effects.cache)
    # Not earlier, so that a body that JAX traces twice draws the same keys both times.
    scope.draws.update(scope.drawn_inside)
    scope.drawn_inside.clear()


def state_below(frame: Frame, module: Module) -> tuple[Arrays, Arrays]:
    """Returns the given parameters and variables of a module and its descendants.

    A missing array is reported when it is read, with the path of the module that reads it.
    """
    scope = frame.scope
    params, variables = (
        {path: source[path] for path in scope.tree.specs(kind, module) if path in source}
        for kind, source in ((ParameterSpec, scope.parameters), (VariableSpec, scope.variables))
    )
    return params, variables


def _written(now: Arrays, before: Arrays) -> Arrays:
    return {path: value for path, value in now.items() if before.get(path) is not value}
