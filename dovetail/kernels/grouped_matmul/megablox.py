"""Grouped matmul on TPUs by JAX's Megablox kernels (https://arxiv.org/abs/2211.15841).

XLA has a ragged product for TPUs too, but not for the gradient of the weight: there it multiplies
all rows for every group. These kernels do the work of N rows in all three products.

N rows, X groups, E width of the rows, F width of the result.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import jax

from dovetail.kernels.grouped_matmul.device_rows import on_device_rows, rows_refusal
from dovetail.kernels.grouped_matmul.op import grouped_matmul_op, keep_grouped_rows
from dovetail.kernels.registry import is_interpreted

LIBRARY = "jax.experimental.pallas.ops.tpu.megablox"
SMALLEST_TILE = 128
LARGEST_ROWS = 512
LARGEST_WIDTH_BYTES = 2048


def _supports(x_NE: jax.Array, weight_XEF: jax.Array, *_: Any) -> str | None:
    if not _is_there():
        return f"this JAX ({jax.__version__}) has no {LIBRARY}"
    return rows_refusal(x_NE, weight_XEF, SMALLEST_TILE)


@grouped_matmul_op.register("megablox", platforms=("tpu",), supports=_supports, before="reference")
def megablox(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Computes by the Megablox kernels; see `grouped_matmul` for the arguments."""
    multiply = functools.partial(_multiply, is_interpreted())
    return on_device_rows(multiply, SMALLEST_TILE, x_NE, weight_XEF, group_sizes_X)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(
    interpret: bool, x_NE: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array
) -> jax.Array:
    return _rows_by_matrix(interpret, x_NE, weight_XEF, sizes_X, transposed=False)


def _forward(
    interpret: bool, x_NE: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _multiply(interpret, x_NE, weight_XEF, sizes_X), (x_NE, weight_XEF, sizes_X)


def _backward(
    interpret: bool, kept: tuple[jax.Array, ...], gradient_NF: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    x_NE, weight_XEF, sizes_X = kept
    by_x_NE = _rows_by_matrix(interpret, gradient_NF, weight_XEF, sizes_X, transposed=True)
    by_weight_XEF = tgmm(
        x_NE.swapaxes(0, 1),
        gradient_NF,
        sizes_X,
        preferred_element_type=weight_XEF.dtype,
        tiling=_tiling(x_NE, gradient_NF.shape[1]),
        interpret=interpret,
    )
    return by_x_NE, by_weight_XEF, None


_multiply.defvjp(_forward, _backward)


def _rows_by_matrix(
    interpret: bool, x_NE: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array, transposed: bool
) -> jax.Array:
    """Multiplies rows by the matrices of their groups, or by those transposed."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    result_NF = gmm(
        x_NE,
        weight_XEF,
        sizes_X,
        preferred_element_type=x_NE.dtype,
        tiling=_tiling(x_NE, weight_XEF.shape[1 if transposed else 2]),
        transpose_rhs=transposed,
        interpret=interpret,
    )
    return keep_grouped_rows(result_NF, sizes_X)  # the kernel leaves other rows as they are


def _tiling(x_NE: jax.Array, out_width: int) -> tuple[int, int, int]:
    """Returns how many rows, and how much of either width, are multiplied at a time."""
    rows, in_width = x_NE.shape
    row_tile = next(tile for tile in (LARGEST_ROWS, 256, SMALLEST_TILE) if rows % tile == 0)
    width_tile = LARGEST_WIDTH_BYTES // x_NE.dtype.itemsize
    return row_tile, min(in_width, width_tile), min(out_width, width_tile)


@functools.cache
def _is_there() -> bool:
    try:
        return find_spec(LIBRARY) is not None
    except ModuleNotFoundError:
        return False
