"""Grouped matmul on GPUs: Pallas kernels for Triton, with the work of N rows in all three products.

XLA on GPUs multiplies every row with every matrix (seen for an H100 with JAX 0.10.2). JAX has
kernels for Mosaic GPU among its examples: for Hopper or for Blackwell, one product each. These run
on any GPU that Triton knows.

N rows, X groups, E width of the rows, F width of the result, T visits to tiles; M, K and C are the
sides of a tile: rows, what is summed over, and columns.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.grouped_matmul.device_rows import on_device_rows, rows_refusal
from dovetail.kernels.grouped_matmul.op import grouped_matmul_op
from dovetail.kernels.grouped_matmul.products import Products, grouped_flops
from dovetail.kernels.grouped_matmul.tiles import visits
from dovetail.kernels.registry import is_interpreted
from dovetail.kernels.triton_tiles import SMALLEST_SIDE, call, dot, missing_library, side_of

ROWS = 128
LARGEST_SIDE = 128
# What is summed over at a time, in bytes of a row: three stages of two such tiles fit a GPU's
# shared memory, an A100's too.
SUMMED_BYTES = 128
STAGES = 3
WARPS = 8


def _supports(x_NE: jax.Array, weight_XEF: jax.Array, *_: Any) -> str | None:
    missing = missing_library()
    if missing is not None:
        return missing
    if x_NE.dtype != weight_XEF.dtype:
        return f"it takes rows and matrices of one type, not {x_NE.dtype} and {weight_XEF.dtype}"
    for width in weight_XEF.shape[1:]:
        if width % SMALLEST_SIDE:
            return f"a width of {width} is no multiple of {SMALLEST_SIDE}"
    return rows_refusal(x_NE, weight_XEF, ROWS)


@grouped_matmul_op.register(
    "triton",
    platforms=("gpu",),
    supports=_supports,
    before="reference",
    kernel_flops=grouped_flops("grouped_matmul", "grouped_outer_products"),
)
def triton(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Computes by the Triton kernels; see `grouped_matmul` for the arguments."""
    products = Products(_rows_by_matrix, _rows_by_rows, is_interpreted())
    return on_device_rows(products, ROWS, x_NE, weight_XEF, group_sizes_X)


def _rows_by_matrix(
    interpret: bool, x_NE: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array, transposed: bool
) -> jax.Array:
    """Multiplies rows by the matrices of their groups, or by those transposed."""
    rows, width = x_NE.shape[0], weight_XEF.shape[1 if transposed else 2]
    places = visits(sizes_X, rows, ROWS)
    columns = side_of(width, LARGEST_SIDE)
    return call(
        functools.partial(_visit_kernel, columns, transposed),
        grid=(places.tile_T.size, width // columns),
        out_shape=jax.ShapeDtypeStruct((rows, width), x_NE.dtype),
        name="grouped_matmul",
        interpret=interpret,
        warps=WARPS,
        stages=STAGES,
    )(*places, x_NE, weight_XEF)  # nobody visits rows in no group


def _rows_by_rows(
    interpret: bool,
    x_NE: jax.Array,
    gradient_NF: jax.Array,
    weight_XEF: jax.Array,
    sizes_X: jax.Array,
) -> jax.Array:
    """Returns each group's sum of the outer products of its rows: the gradient of the matrices."""
    widths = x_NE.shape[1], gradient_NF.shape[1]
    sides = side_of(widths[0], LARGEST_SIDE), side_of(widths[1], LARGEST_SIDE)
    stops_X = jnp.cumsum(sizes_X)
    return call(
        functools.partial(_group_kernel, sides),
        grid=(sizes_X.size, widths[0] // sides[0], widths[1] // sides[1]),
        out_shape=jax.ShapeDtypeStruct(weight_XEF.shape, weight_XEF.dtype),
        name="grouped_outer_products",
        interpret=interpret,
        warps=WARPS,
        stages=STAGES,
    )(stops_X - sizes_X, stops_X, x_NE, gradient_NF)


def _visit_kernel(
    columns: int,
    transposed: bool,
    tile_T: Any,
    group_T: Any,
    first_T: Any,
    stop_T: Any,
    x_NE: Any,
    weight_XEF: Any,
    result_NF: Any,
) -> None:
    """Computes some columns of the rows that one group has in one tile."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton as library

    visit = pallas.program_id(0)
    first, stop, group = first_T[visit], stop_T[visit], group_T[visit]
    here_M = pallas.ds(tile_T[visit] * ROWS, ROWS)
    here_C = pallas.ds(pallas.program_id(1) * columns, columns)
    summed = _summed(x_NE)

    def step(index: Any, total_MC: Any) -> Any:
        here_K = pallas.ds(index * summed, summed)
        place = (group, here_C, here_K) if transposed else (group, here_K, here_C)
        return total_MC + dot(x_NE[here_M, here_K], weight_XEF[place], trans_b=transposed)

    @pallas.when(first < stop)
    def _() -> None:
        total_MC = jnp.zeros((ROWS, columns), jnp.float32)
        total_MC = jax.lax.fori_loop(0, x_NE.shape[1] // summed, step, total_MC)
        is_own_M1 = _within(tile_T[visit] * ROWS, ROWS, first, stop)
        made_MC = total_MC.astype(result_NF.dtype)
        library.store(result_NF.at[here_M, here_C], made_MC, mask=is_own_M1)


def _group_kernel(
    sides: tuple[int, int],
    first_X: Any,
    stop_X: Any,
    x_NE: Any,
    gradient_NF: Any,
    result_XEF: Any,
) -> None:
    """Computes a tile of one group's matrix: from all of its rows, a few at a time."""
    from jax.experimental import pallas

    group = pallas.program_id(0)
    first, stop = first_X[group], stop_X[group]
    here_E, here_F = (
        pallas.ds(pallas.program_id(1 + i) * side, side) for i, side in enumerate(sides)
    )
    summed = side_of(x_NE.shape[0], SUMMED_BYTES // x_NE.dtype.itemsize)

    def step(index: Any, total_EF: Any) -> Any:
        here_K = pallas.ds(index * summed, summed)
        # Others' rows may hold anything: both factors are cleared.
        is_own_K1 = _within(index * summed, summed, first, stop)
        x_KE = jnp.where(is_own_K1, x_NE[here_K, here_E], 0)
        gradient_KF = jnp.where(is_own_K1, gradient_NF[here_K, here_F], 0)
        return total_EF + dot(x_KE, gradient_KF, trans_a=True)

    total_EF = jnp.zeros(sides, jnp.float32)
    last = jax.lax.div(stop + summed - 1, summed)
    total_EF = jax.lax.fori_loop(jax.lax.div(first, summed), last, step, total_EF)
    result_XEF[group, here_E, here_F] = total_EF.astype(result_XEF.dtype)


def _within(start: Any, rows: int, first: Any, stop: Any) -> Any:
    """Says which of some rows belong to a group."""
    numbers_M1 = start + jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
    return (numbers_M1 >= first) & (numbers_M1 < stop)


def _summed(x_NE: Any) -> int:
    return side_of(x_NE.shape[1], SUMMED_BYTES // x_NE.dtype.itemsize)
