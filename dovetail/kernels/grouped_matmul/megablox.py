"""Grouped matmul on TPUs by JAX's Megablox kernels (https://arxiv.org/abs/2211.15841).

XLA has a ragged matmul for TPUs, too, but not for the gradient of the weight: there it multiplies
all rows for every group. These kernels do the work of N rows in all three matmuls.

N rows, X groups, E width of the rows, F width of the result. I and O are the widths of rows and
result of one matmul: E and F, or F and E for dx.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import jax

from dovetail.kernels.dispatch import implementation, is_interpreted
from dovetail.kernels.grouped_matmul.shards import row_shards_refusal, run_on_row_shards
from dovetail.kernels.grouped_matmul.vjp import GroupedKernels, grouped_flops

LIBRARY = "jax.experimental.pallas.ops.tpu.megablox"
SMALLEST_TILE = 128
LARGEST_ROWS = 512
LARGEST_WIDTH_BYTES = 2048


def _supports(x_NE: jax.Array, weight_XEF: jax.Array, *_: Any) -> str | None:
    if not _has_library():
        return f"this JAX ({jax.__version__}) has no {LIBRARY}"
    return row_shards_refusal(x_NE, weight_XEF, SMALLEST_TILE)


@implementation(
    "megablox",
    platforms=("tpu",),
    supports=_supports,
    kernel_flops=grouped_flops("gmm", "tgmm"),
)
def megablox(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Computes by the Megablox kernels; see `grouped_matmul` for the arguments."""
    kernels = GroupedKernels(_gmm, _tgmm, is_interpreted())
    return run_on_row_shards(kernels, SMALLEST_TILE, x_NE, weight_XEF, group_sizes_X)


def _gmm(
    interpret: bool, x_NI: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array, transposed: bool
) -> jax.Array:
    """Multiplies rows with the matrices of their groups, or with those transposed."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    out_NO: jax.Array = gmm(
        x_NI,
        weight_XEF,
        sizes_X,
        preferred_element_type=x_NI.dtype,
        tiling=_tiling(x_NI, weight_XEF.shape[1 if transposed else 2]),
        transpose_rhs=transposed,
        interpret=interpret,
    )
    return out_NO


def _tgmm(
    interpret: bool,
    x_NE: jax.Array,
    dout_NF: jax.Array,
    weight_XEF: jax.Array,
    sizes_X: jax.Array,
) -> jax.Array:
    """Computes `x.T @ dout` for each group."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    dw_XEF: jax.Array = tgmm(
        x_NE.swapaxes(0, 1),
        dout_NF,
        sizes_X,
        preferred_element_type=weight_XEF.dtype,
        tiling=_tiling(x_NE, dout_NF.shape[1]),
        interpret=interpret,
    )
    return dw_XEF


def _tiling(x_NI: jax.Array, out_width: int) -> tuple[int, int, int]:
    """Returns the tile sizes of the rows, the input width and the output width."""
    rows, in_width = x_NI.shape
    row_tile = next(tile for tile in (LARGEST_ROWS, 256, SMALLEST_TILE) if rows % tile == 0)
    width_tile = LARGEST_WIDTH_BYTES // x_NI.dtype.itemsize
    return row_tile, min(in_width, width_tile), min(out_width, width_tile)


@functools.cache
def _has_library() -> bool:
    try:
        return find_spec(LIBRARY) is not None
    except ModuleNotFoundError:
        return False
