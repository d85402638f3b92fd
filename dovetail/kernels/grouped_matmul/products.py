"""The three products of a grouped matmul, joined so that gradients go through kernels too.

N rows, X groups, E width of the rows, F width of the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax

from dovetail.kernels.grouped_matmul.op import keep_grouped_rows
from dovetail.kernels.registry import KernelFlops, Shape


class RowsByMatrix(Protocol):
    """Multiplies rows by the matrices of their groups, or by those transposed."""

    def __call__(
        self,
        interpret: bool,
        x_NE: jax.Array,
        weight_XEF: jax.Array,
        sizes_X: jax.Array,
        transposed: bool,
    ) -> jax.Array:
        """Returns [N, F] in the dtype of the rows; rows in no group may hold anything."""
        ...


class RowsByRows(Protocol):
    """Adds up the outer products of each group's rows."""

    def __call__(
        self,
        interpret: bool,
        x_NE: jax.Array,
        gradient_NF: jax.Array,
        weight_XEF: jax.Array,
        sizes_X: jax.Array,
    ) -> jax.Array:
        """Returns [X, E, F] in the dtype of the weight, whose gradient it is."""
        ...


class Products(NamedTuple):
    """What a kernel brings, and whether it is interpreted."""

    rows_by_matrix: RowsByMatrix
    rows_by_rows: RowsByRows
    interpret: bool


def grouped_flops(rows_by_matrix: str, rows_by_rows: str) -> KernelFlops:
    """Returns a counter for the kernels of these names: each row meets the matrix of its group."""

    def count(kernel: str, shapes: Sequence[Shape]) -> float | None:
        arrays = [shape for shape in shapes if len(shape) > 1]
        if kernel.startswith(rows_by_rows):
            one, other = arrays[:2]
            rows = max(size for size in one if size in other)  # either may be transposed
            return 2.0 * math.prod(one) * math.prod(other) / rows
        if kernel.startswith(rows_by_matrix):
            (rows, width), weight = arrays[:2]
            return 2.0 * rows * width * math.prod(weight[1:]) / width
        return None

    return count


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(by: Products, x_NE: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array) -> jax.Array:
    """Multiplies the rows of each group with its matrix; rows in no group give zeros."""
    result_NF = by.rows_by_matrix(by.interpret, x_NE, weight_XEF, sizes_X, transposed=False)
    return keep_grouped_rows(result_NF, sizes_X)


def _forward(
    by: Products, x_NE: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return multiply(by, x_NE, weight_XEF, sizes_X), (x_NE, weight_XEF, sizes_X)


def _backward(
    by: Products, kept: tuple[jax.Array, ...], gradient_NF: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x_NE, weight_XEF, sizes_X = kept
    by_x_NE = by.rows_by_matrix(by.interpret, gradient_NF, weight_XEF, sizes_X, transposed=True)
    by_weight_XEF = by.rows_by_rows(by.interpret, x_NE, gradient_NF, weight_XEF, sizes_X)
    return keep_grouped_rows(by_x_NE, sizes_X), by_weight_XEF, None


multiply.defvjp(_forward, _backward)
