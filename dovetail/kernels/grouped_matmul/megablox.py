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
from dovetail.kernels.grouped_matmul.op import grouped_matmul_op
from dovetail.kernels.grouped_matmul.products import Products, grouped_flops
from dovetail.kernels.registry import is_interpreted

LIBRARY = "jax.experimental.pallas.ops.tpu.megablox"
SMALLEST_TILE = 128
LARGEST_ROWS = 512
LARGEST_WIDTH_BYTES = 2048


def _supports(x_NE: jax.Array, weight_XEF: jax.Array, *_: Any) -> str | None:
    if not _is_there():
        return f"this JAX ({jax.__version__}) has no {LIBRARY}"
    return rows_refusal(x_NE, weight_XEF, SMALLEST_TILE)


@grouped_matmul_op.register(
    "megablox",
    platforms=("tpu",),
    supports=_supports,
    before="reference",
    kernel_flops=grouped_flops("gmm", "tgmm"),
)
def megablox(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Computes by the Megablox kernels; see `grouped_matmul` for the arguments."""
    products = Products(_rows_by_matrix, _rows_by_rows, is_interpreted())
    return on_device_rows(products, SMALLEST_TILE, x_NE, weight_XEF, group_sizes_X)


def _rows_by_matrix(
    interpret: bool, x_NE: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array, transposed: bool
) -> jax.Array:
    """Multiplies rows by the matrices of their groups, or by those transposed."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    result_NF: jax.Array = gmm(
        x_NE,
        weight_XEF,
        sizes_X,
        preferred_element_type=x_NE.dtype,
        tiling=_tiling(x_NE, weight_XEF.shape[1 if transposed else 2]),
        transpose_rhs=transposed,
        interpret=interpret,
    )
    return result_NF


def _rows_by_rows(
    interpret: bool,
    x_NE: jax.Array,
    gradient_NF: jax.Array,
    weight_XEF: jax.Array,
    sizes_X: jax.Array,
) -> jax.Array:
    """Adds up the outer products of each group's rows."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    by_weight_XEF: jax.Array = tgmm(
        x_NE.swapaxes(0, 1),
        gradient_NF,
        sizes_X,
        preferred_element_type=weight_XEF.dtype,
        tiling=_tiling(x_NE, gradient_NF.shape[1]),
        interpret=interpret,
    )
    return by_weight_XEF


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
