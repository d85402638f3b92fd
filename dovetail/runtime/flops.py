"""Model FLOPs, counted from a jaxpr; no formula per model is needed.

MFU divides the model FLOPs by the peak FLOPs of the chip in the same time. Model FLOPs count the
matrix products of a plain forward pass, times three for training: the backward pass has two
products for each. Blocks that a kernel skips (the masked half of attention) and recomputation
(rematerialization) do not change the count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from dovetail.module import walk_jaxpr

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr


def matmul_flops_of(jaxpr: Jaxpr) -> int:
    """Returns the FLOPs of all matrix products of a traced function.

    Pallas kernels are not counted.
    """
    return _count(jaxpr).total()


def matmul_flops_by_dtype(function: Callable[..., Any], *args: Any) -> dict[str, int]:
    """Returns the matmul FLOPs of a call by the dtype of the operands; runs nothing.

    If the operands differ, the wider dtype counts. So quantized matmuls are found in the program,
    without a declaration.
    """
    return dict(_count(jax.make_jaxpr(function)(*args).jaxpr))


def _count(jaxpr: Jaxpr) -> Counter[str]:
    total: Counter[str] = Counter()
    for equation, runs, _ in walk_jaxpr(jaxpr, opaque=("pallas_call", "cond")):
        if equation.primitive.name == "dot_general":
            total[_operand_dtype(equation)] += runs * _dot_flops(equation)
        elif equation.primitive.name == "ragged_dot_general":
            total[_operand_dtype(equation)] += runs * _ragged_dot_flops(equation)
        elif equation.primitive.name == "cond":
            branches = [_count(branch.jaxpr) for branch in equation.params["branches"]]
            for dtype, flops in max(branches, key=Counter.total).items():
                total[dtype] += runs * flops
    return total


def _operand_dtype(equation: Any) -> str:
    """Returns the dtype of a product's operands; the wider one if they differ."""
    dtypes = [operand.aval.dtype for operand in equation.invars[:2]]
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
    """Counts each row once, with the matrix of its group."""
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (contracting, _), _ = numbers.dot_dimension_numbers
    left, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if set(numbers.lhs_ragged_dimensions) <= set(contracting):
        result = result[1:]  # one product per group, contracted over the rows of that group only
    return 2 * math.prod(result) * math.prod(left[axis] for axis in contracting)
