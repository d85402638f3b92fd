"""Counting the multiplications of a function from its jaxpr, with no formula per model.

MFU divides the work that the mathematics asks for by what the chip could do in the same time. That
work is the matrix products of a plain forward pass, times three for training: the backward pass
does two products for each. What a kernel skips (the masked half of attention) or repeats
(rematerialisation) does not change it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr


def matmul_flops(function: Callable[..., Any], *args: Any) -> int:
    """Returns the floating-point operations of all matrix products of a call; nothing is run."""
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr: Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            total += _dot_flops(equation, equation.params["dimension_numbers"])
        elif equation.primitive.name == "ragged_dot_general":
            # Each row meets the matrix of its own group, so the groups do not multiply the work.
            numbers = equation.params["ragged_dot_dimension_numbers"]
            total += _dot_flops(equation, numbers.dot_dimension_numbers)
        elif equation.primitive.name == "cond":
            total += max(_count(branch.jaxpr) for branch in equation.params["branches"])
        else:
            repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            total += repeats * sum(_count(inner) for inner in _inner(equation.params))
    return total


def _dot_flops(equation: Any, dimension_numbers: Any) -> int:
    (contracting, _), _ = dimension_numbers
    left = equation.invars[0].aval.shape
    return (
        2
        * math.prod(equation.outvars[0].aval.shape)
        * math.prod(left[axis] for axis in contracting)
    )


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """Yields the jaxprs that an operation calls: a loop's, a nested jit's, a custom rule's."""
    from jax.extend.core import ClosedJaxpr, Jaxpr  # slow to import

    for value in params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item
