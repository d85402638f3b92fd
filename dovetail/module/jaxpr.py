"""Walking a jaxpr: every equation, nested ones included, with how often it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr


class JaxprStep(NamedTuple):
    """An equation of a jaxpr.

    Attributes:
        equation: the equation itself.
        runs: how often it runs: the product of the lengths of the scans around it. A `while` loop
            counts once, since its length depends on data.
        scope: the name of the innermost jit (or other named call) around it.
    """

    equation: Any
    runs: int
    scope: str


def walk_jaxpr(
    jaxpr: Jaxpr,
    *,
    opaque: Collection[str] = ("pallas_call",),
    runs: int = 1,
    scope: str = "",
) -> Iterator[JaxprStep]:
    """Yields every equation in order, and after each the equations of the jaxprs that it calls.

    Equations of `opaque` primitives are yielded, but not entered. The jaxpr of a Pallas kernel says
    how one block is computed, not how many there are.
    """
    from jax.extend.core import ClosedJaxpr, Jaxpr  # slow to import

    for equation in jaxpr.eqns:
        yield JaxprStep(equation, runs, scope)
        if equation.primitive.name in opaque:
            continue
        length = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        name = str(equation.params.get("name") or scope)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    called = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
                    yield from walk_jaxpr(called, opaque=opaque, runs=runs * length, scope=name)
