"""Grouped matmul on GPUs: Pallas kernels for Triton, with the work of N rows in all three matmuls.

XLA on GPUs multiplies every row with every matrix (seen for an H100 with JAX 0.10.2). JAX has
kernels for Mosaic GPU among its examples: for Hopper or for Blackwell, one matmul each. These run
on any GPU that Triton supports.

N rows, X groups, E width of the rows, F width of the result, T visits to tiles; M, K and C are the
sides of a tile: rows, contraction, and columns. I and O are the widths of rows and result of one
matmul: E and F, or F and E for dx.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.dispatch import implementation, is_interpreted
from dovetail.kernels.grouped_matmul.shards import row_shards_refusal, run_on_row_shards
from dovetail.kernels.grouped_matmul.vjp import GroupedKernels, grouped_flops
from dovetail.kernels.triton_tiles import SMALLEST_SIDE, call, dot, missing_library, side_of

ROWS = 128
LARGEST_SIDE = 128
# The contracted side of a tile, in bytes: three pipeline stages of two such tiles fit the shared
# memory of an A100.
CONTRACTED_BYTES = 128
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
    return row_shards_refusal(x_NE, weight_XEF, ROWS)


@implementation(
    "triton",
    platforms=("gpu",),
    supports=_supports,
    kernel_flops=grouped_flops("grouped_matmul", "grouped_outer_products"),
)
def triton(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Computes by the Triton kernels; see `grouped_matmul` for the arguments."""
    kernels = GroupedKernels(_gmm, _tgmm, is_interpreted())
    return run_on_row_shards(kernels, ROWS, x_NE, weight_XEF, group_sizes_X)


def _gmm(
    interpret: bool, x_NI: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array, transposed: bool
) -> jax.Array:
    """Multiplies rows with the matrices of their groups, or with those transposed."""
    rows, width = x_NI.shape[0], weight_XEF.shape[1 if transposed else 2]
    visits = tile_visits(sizes_X, rows, ROWS)
    columns = side_of(width, LARGEST_SIDE)
    return call(
        functools.partial(_gmm_kernel, columns, transposed),
        grid=(visits.tile_T.size, width // columns),
        out_shape=jax.ShapeDtypeStruct((rows, width), x_NI.dtype),
        name="grouped_matmul",
        interpret=interpret,
        warps=WARPS,
        stages=STAGES,
    )(*visits, x_NI, weight_XEF)  # rows in no group are not visited


def _tgmm(
    interpret: bool,
    x_NE: jax.Array,
    dout_NF: jax.Array,
    weight_XEF: jax.Array,
    sizes_X: jax.Array,
) -> jax.Array:
    """Computes `x.T @ dout` for each group: the gradient of the matrices."""
    widths = x_NE.shape[1], dout_NF.shape[1]
    sides = side_of(widths[0], LARGEST_SIDE), side_of(widths[1], LARGEST_SIDE)
    stops_X = jnp.cumsum(sizes_X)
    return call(
        functools.partial(_tgmm_kernel, sides),
        grid=(sizes_X.size, widths[0] // sides[0], widths[1] // sides[1]),
        out_shape=jax.ShapeDtypeStruct(weight_XEF.shape, weight_XEF.dtype),
        name="grouped_outer_products",
        interpret=interpret,
        warps=WARPS,
        stages=STAGES,
    )(stops_X - sizes_X, stops_X, x_NE, dout_NF)


def _gmm_kernel(
    columns: int,
    transposed: bool,
    tile_T: Any,
    group_T: Any,
    first_T: Any,
    stop_T: Any,
    x_NI: Any,
    weight_XEF: Any,
    out_NO: Any,
) -> None:
    """Computes some columns of the rows of one group in one tile."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton as library

    visit = pallas.program_id(0)
    first, stop, group = first_T[visit], stop_T[visit], group_T[visit]
    rows_M = pallas.ds(tile_T[visit] * ROWS, ROWS)
    columns_C = pallas.ds(pallas.program_id(1) * columns, columns)
    side = side_of(x_NI.shape[1], CONTRACTED_BYTES // x_NI.dtype.itemsize)

    def step(index: Any, total_MC: Any) -> Any:
        contracted_K = pallas.ds(index * side, side)
        tile = (group, columns_C, contracted_K) if transposed else (group, contracted_K, columns_C)
        return total_MC + dot(x_NI[rows_M, contracted_K], weight_XEF[tile], trans_b=transposed)

    @pallas.when(first < stop)
    def _() -> None:
        total_MC = jnp.zeros((ROWS, columns), jnp.float32)
        total_MC = jax.lax.fori_loop(0, x_NI.shape[1] // side, step, total_MC)
        is_own_M1 = _within(tile_T[visit] * ROWS, ROWS, first, stop)
        out_MC = total_MC.astype(out_NO.dtype)
        library.store(out_NO.at[rows_M, columns_C], out_MC, mask=is_own_M1)


def _tgmm_kernel(
    sides: tuple[int, int],
    first_X: Any,
    stop_X: Any,
    x_NE: Any,
    dout_NF: Any,
    dw_XEF: Any,
) -> None:
    """Computes one tile of the gradient of one group's matrix, in a loop over its rows."""
    from jax.experimental import pallas

    group = pallas.program_id(0)
    first, stop = first_X[group], stop_X[group]
    rows_M, columns_C = (
        pallas.ds(pallas.program_id(1 + i) * size, size) for i, size in enumerate(sides)
    )
    side = side_of(x_NE.shape[0], CONTRACTED_BYTES // x_NE.dtype.itemsize)

    def step(index: Any, total_MC: Any) -> Any:
        contracted_K = pallas.ds(index * side, side)
        # Rows of other groups may hold NaN: zero both factors.
        is_own_K1 = _within(index * side, side, first, stop)
        x_KM = jnp.where(is_own_K1, x_NE[contracted_K, rows_M], 0)
        dout_KC = jnp.where(is_own_K1, dout_NF[contracted_K, columns_C], 0)
        return total_MC + dot(x_KM, dout_KC, trans_a=True)

    total_MC = jnp.zeros(sides, jnp.float32)
    last = jax.lax.div(stop + side - 1, side)
    total_MC = jax.lax.fori_loop(jax.lax.div(first, side), last, step, total_MC)
    dw_XEF[group, rows_M, columns_C] = total_MC.astype(dw_XEF.dtype)


def _within(start: Any, rows: int, first: Any, stop: Any) -> Any:
    """Returns which of some rows belong to a group."""
    index_M1 = start + jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
    return (index_M1 >= first) & (index_M1 < stop)


class TileVisits(NamedTuple):
    """Which tiles of rows to compute for which groups. A tile with several groups is visited often.

    Attributes:
        tile_T: the index of the tile.
        group_T: the group.
        first_T: the first row of the group.
        stop_T: one past its last row; equal to the first for an unused visit.
    """

    tile_T: jax.Array
    group_T: jax.Array
    first_T: jax.Array
    stop_T: jax.Array


def tile_visits(sizes_X: jax.Array, rows: int, tile: int) -> TileVisits:
    """Returns the visits; T is static: each group but the first may share a tile."""
    stops_X = jnp.cumsum(sizes_X)
    starts_X = stops_X - sizes_X
    counts_X = jnp.where(sizes_X > 0, (stops_X - 1) // tile - starts_X // tile + 1, 0)
    ends_X = jnp.cumsum(counts_X)
    index_T = jnp.arange(rows // tile + sizes_X.size - 1)
    is_used_T = index_T < ends_X[-1]
    group_T = jnp.where(is_used_T, jnp.searchsorted(ends_X, index_T, side="right"), 0)
    inside_T = index_T - (ends_X - counts_X)[group_T]
    tile_T = jnp.where(is_used_T, starts_X[group_T] // tile + inside_T, 0)
    first_T = jnp.where(is_used_T, starts_X[group_T], 0)
    stop_T = jnp.where(is_used_T, stops_X[group_T], 0)
    return TileVisits(*(array.astype(jnp.int32) for array in (tile_T, group_T, first_T, stop_T)))
