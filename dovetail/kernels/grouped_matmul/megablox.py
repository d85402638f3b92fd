"""Grouped matmul on TPUs by JAX's Megablox kernels (https://arxiv.org/abs/2211.15841).

XLA has a ragged product for TPUs too, but not for the gradient of the weight: there it multiplies
all rows for every group. These kernels do the work of N rows in all three products.

Under a mesh the sorted rows are cut into equal runs, one a device, wherever that cuts through a
group; each device counts how many rows of each group its own run holds. The matrices are gathered.

N rows, X groups, E width of the rows, F width of the result.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.grouped_matmul.op import grouped_matmul_op, keep_grouped_rows
from dovetail.kernels.registry import is_interpreted
from dovetail.kernels.sharded import indivisible, on_each_device, parts

LIBRARY = "jax.experimental.pallas.ops.tpu.megablox"
ROW_AXES = ("batch", "sequence", "mlp")  # all devices share the rows, also those that split widths
SMALLEST_TILE = 128
LARGEST_ROWS = 512
LARGEST_WIDTH_BYTES = 2048


def _supports(x_NE: jax.Array, weight_XEF: jax.Array, *_: Any) -> str | None:
    rows = x_NE.shape[0] // parts(*ROW_AXES)
    if not _is_there():
        return f"this JAX ({jax.__version__}) has no {LIBRARY}"
    if rows < SMALLEST_TILE:
        return f"{rows} rows on a device are fewer than a tile of {SMALLEST_TILE}"
    for dtype in (x_NE.dtype, weight_XEF.dtype):
        if dtype not in (jnp.float32, jnp.bfloat16):
            return f"it takes float32 or bfloat16, not {dtype}"
    return indivisible("rows", x_NE.shape[0], *ROW_AXES)


@grouped_matmul_op.register("megablox", platforms=("tpu",), supports=_supports, before="reference")
def megablox(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Computes by the Megablox kernels; see `grouped_matmul` for the arguments."""
    run = on_each_device(
        functools.partial(_on_device, is_interpreted()),
        in_axes=((ROW_AXES, None), (None, None, None), (None,), (ROW_AXES,)),
        out_axes=(ROW_AXES, None),
    )
    result_NF: jax.Array = run(x_NE, weight_XEF, group_sizes_X, jnp.arange(x_NE.shape[0]))
    return result_NF


def sizes_within(group_sizes_X: jax.Array, start: jax.Array, rows: int) -> jax.Array:
    """Returns how many rows of each group stand in a run of the sorted rows."""
    stops_X = jnp.cumsum(group_sizes_X)
    inside = functools.partial(jnp.clip, min=start, max=start + rows)
    return inside(stops_X) - inside(stops_X - group_sizes_X)


def _on_device(
    interpret: bool,
    x_NE: jax.Array,
    weight_XEF: jax.Array,
    group_sizes_X: jax.Array,
    numbers_N: jax.Array,
) -> jax.Array:
    """Multiplies one device's run of rows, which know their numbers among all."""
    rows = x_NE.shape[0]
    sizes_X = sizes_within(group_sizes_X, numbers_N[0], rows).astype(jnp.int32)
    missing = -rows % SMALLEST_TILE
    padded_NE = jnp.pad(x_NE, [(0, missing), (0, 0)]) if missing else x_NE
    return _multiply(interpret, padded_NE, weight_XEF, sizes_X)[:rows]


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
