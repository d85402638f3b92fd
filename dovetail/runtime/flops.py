"""Counting the multiplications of a function from its jaxpr, with no formula per model.

MFU divides the work that the mathematics asks for by what the chip could do in the same time. That
work is the matrix products of a plain forward pass, times three for training: the backward pass
does two products for each. What a kernel skips (the masked half of attention) or repeats
(rematerialisation) does not change it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr


def matmul_flops_of(jaxpr: Jaxpr) -> int:
    """Returns the floating-point operations of all matrix products of a traced function.

    Inside of hand-written kernels nothing counts.
    """
    return _count(jaxpr).total()


def matmul_flops_by_type(function: Callable[..., Any], *args: Any) -> dict[str, int]:
    """Returns those of a call apart for each type of number that is multiplied; nothing is run.

    Of a product's two types it is the wider. So whoever computes in eight bits need not say so: the
    program does.
    """
    return dict(_count(jax.make_jaxpr(function)(*args).jaxpr))


def _count(jaxpr: Jaxpr) -> Counter[str]:
    total: Counter[str] = Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            total[_multiplied(equation)] += _dot_flops(equation)
        elif equation.primitive.name == "ragged_dot_general":
            total[_multiplied(equation)] += _ragged_dot_flops(equation)
        elif equation.primitive.name == "pallas_call":
            continue  # it says how one block is computed, not how many are
        elif equation.primitive.name == "cond":
            branches = [_count(branch.jaxpr) for branch in equation.params["branches"]]
            total.update(max(branches, key=lambda flops: sum(flops.values())))
        else:
            repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            for inner in _inner(equation.params):
                for dtype, flops in _count(inner).items():
                    total[dtype] += repeats * flops
    return total


def _multiplied(equation: Any) -> str:
    """Returns the type of a product's factors; of two, the wider."""
    dtypes = [factor.aval.dtype for factor in equation.invars[:2]]
    name: str = max(dtypes, key=lambda dtype: dtype.itemsize).name
    return name


def _dot_flops(equation: Any) -> int:
    (contracting, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return (
        2
        * math.prod(equation.outvars[0].aval.shape)
        * math.prod(left[axis] for axis in contracting)
    )


def _ragged_dot_flops(equation: Any) -> int:
    """Counts each row once, with the one matrix of its group, however many groups there are."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracting, _), _ = numbers.dot_dimension_numbers
    left, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if set(numbers.lhs_ragged_dimensions) <= set(contracting):
        result = result[1:]  # a sum for each group, over the rows of the group alone
    return 2 * math.prod(result) * math.prod(left[axis] for axis in contracting)


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """Yields the jaxprs that an operation calls: a loop's, a nested jit's, a custom rule's."""
    from jax.extend.core import ClosedJaxpr, Jaxpr  # slow to import

    for value in params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            if isinstance(item, ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, Jaxpr):
                yield item
