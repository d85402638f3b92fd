"""The custom VJP of a grouped matmul: gmm forward and for dx, tgmm for dw (Megablox's names).

N rows, X groups, E width of the rows, F width of the result. I and O are the widths of rows and
result of one matmul: E and F, or F and E for dx.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax

from dovetail.kernels.dispatch import KernelFlops, Shape
from dovetail.kernels.grouped_matmul.op import zero_ungrouped_rows


class Gmm(Protocol):
    """Multiplies rows with the matrices of their groups, or with those transposed."""

    def __call__(
        self,
        interpret: bool,
        x_NI: jax.Array,
        weight_XEF: jax.Array,
        sizes_X: jax.Array,
        transposed: bool,
    ) -> jax.Array:
        """Returns [N, O] in the dtype of the rows; rows in no group are undefined."""
        ...


class Tgmm(Protocol):
    """Computes `x.T @ dout` for each group."""

    def __call__(
        self,
        interpret: bool,
        x_NE: jax.Array,
        dout_NF: jax.Array,
        weight_XEF: jax.Array,
        sizes_X: jax.Array,
    ) -> jax.Array:
        """Returns dw, [X, E, F], in the dtype of the weight."""
        ...


class GroupedKernels(NamedTuple):
    """The kernels of an implementation, and whether they run in interpret mode."""

    gmm: Gmm
    tgmm: Tgmm
    interpret: bool


def grouped_flops(gmm: str, tgmm: str) -> KernelFlops:
    """Returns a FLOP counter for kernels whose names have these prefixes."""

    def count(kernel: str, shapes: Sequence[Shape]) -> float | None:
        arrays = [shape for shape in shapes if len(shape) > 1]
        if kernel.startswith(tgmm):
            one, other = arrays[:2]
            rows = max(size for size in one if size in other)  # either may be transposed
            return 2.0 * math.prod(one) * math.prod(other) / rows
        if kernel.startswith(gmm):
            (rows, width), weight = arrays[:2]
            return 2.0 * rows * width * math.prod(weight[1:]) / width
        return None

    return count


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def multiply(
    kernels: GroupedKernels, x_NE: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array
) -> jax.Array:
    """Multiplies the rows of each group with its matrix; rows in no group give zeros."""
    out_NF = kernels.gmm(kernels.interpret, x_NE, weight_XEF, sizes_X, transposed=False)
    return zero_ungrouped_rows(out_NF, sizes_X)


def _forward(
    kernels: GroupedKernels, x_NE: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return multiply(kernels, x_NE, weight_XEF, sizes_X), (x_NE, weight_XEF, sizes_X)


def _backward(
    kernels: GroupedKernels, residuals: tuple[jax.Array, ...], dout_NF: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x_NE, weight_XEF, sizes_X = residuals
    dx_NE = kernels.gmm(kernels.interpret, dout_NF, weight_XEF, sizes_X, transposed=True)
    dw_XEF = kernels.tgmm(kernels.interpret, x_NE, dout_NF, weight_XEF, sizes_X)
    return zero_ungrouped_rows(dx_NE, sizes_X), dw_XEF, None


multiply.defvjp(_forward, _backward)
