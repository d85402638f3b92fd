"""Grouped matmul for the CPU: a loop over the groups, and in it one over blocks of rows.

XLA on the CPU has no ragged matmul: it multiplies every row with every matrix. Here the work is
that of N rows, plus less than one block for each group. The forward pass does not even read the
matrix of an empty group.

The last block of a group overlaps the rows of the next one. It computes wrong values there, which
the next group overwrites; rows after the last group are zeroed at the end.

N rows, X groups, E width of the rows, F width of the result, M rows of a block, L = N + M rows with
padding. I and O are the widths of rows and result of one matmul: E and F, or F and E for dx.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.dispatch import implementation
from dovetail.kernels.grouped_matmul.op import zero_ungrouped_rows
from dovetail.kernels.sharded import is_sharded

# Rows of a block. Small blocks waste fewer rows at the ends of groups, large ones multiply faster.
SMALLEST_BLOCK = 16
LARGEST_BLOCK = 256


def _supports(x_NE: jax.Array, weight_XEF: jax.Array, *_: Any) -> str | None:
    if x_NE.shape[0] == 0:
        return "there are no rows"
    if weight_XEF.shape[0] == 1:
        return "one group needs no loop"
    if is_sharded():
        return "the rows may be sharded over devices, and its blocks would cross shards"
    return None


@implementation("blocked", platforms=("cpu",), supports=_supports)
def blocked(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Computes block by block; see `grouped_matmul` for the arguments."""
    block = block_rows(x_NE.shape[0], weight_XEF.shape[0])
    return _multiply(block, x_NE, weight_XEF, group_sizes_X)


def block_rows(rows: int, groups: int) -> int:
    """Returns the rows of a block: a power of two, about half of an evenly sized group."""
    block = SMALLEST_BLOCK
    while block < LARGEST_BLOCK and 2 * block * groups < rows:
        block *= 2
    return block


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(
    block: int, x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array
) -> jax.Array:
    return _grouped_matmul("me,ef->mf", block, x_NE, weight_XEF, group_sizes_X)


def _forward(
    block: int, x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _multiply(block, x_NE, weight_XEF, group_sizes_X), (x_NE, weight_XEF, group_sizes_X)


def _backward(
    block: int, residuals: tuple[jax.Array, ...], dout_NF: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x_NE, weight_XEF, group_sizes_X = residuals
    dx_NE = _grouped_matmul("mf,ef->me", block, dout_NF, weight_XEF, group_sizes_X)
    dw_XEF = _grouped_outer_product(block, x_NE, dout_NF, group_sizes_X)
    return dx_NE.astype(x_NE.dtype), dw_XEF.astype(weight_XEF.dtype), None


_multiply.defvjp(_forward, _backward)


# A jit of its own, so that JAX traces these loops once for all matmuls of one shape.
@partial(jax.jit, static_argnums=(0, 1))
def _grouped_matmul(
    subscripts: str, block: int, x_NI: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array
) -> jax.Array:
    """Multiplies the rows of each group with its matrix, by the einsum of the subscripts."""
    padded_LI = _padded(x_NI, block)
    starts_X = jnp.cumsum(group_sizes_X) - group_sizes_X
    (nonempty_X,) = jnp.nonzero(group_sizes_X, size=group_sizes_X.size)  # in order, then zeros

    def group(index: jax.Array, out_LO: jax.Array) -> jax.Array:
        number = nonempty_X[index]
        matrix_EF = weight_XEF[number]

        def step(index: jax.Array, out_LO: jax.Array) -> jax.Array:
            start = starts_X[number] + index * block
            rows_MI = jax.lax.dynamic_slice_in_dim(padded_LI, start, block)
            out_MO = _matmul(subscripts, rows_MI, matrix_EF).astype(out_LO.dtype)
            return jax.lax.dynamic_update_slice_in_dim(out_LO, out_MO, start, axis=0)

        blocks = _blocks(group_sizes_X[number], block)
        return jax.lax.fori_loop(0, blocks, step, out_LO)

    width = jax.eval_shape(
        lambda x_NI, weight_XEF: _matmul(subscripts, x_NI, weight_XEF[0]), x_NI, weight_XEF
    ).shape[1]
    out_LO = jnp.zeros((padded_LI.shape[0], width), x_NI.dtype)
    out_LO = jax.lax.fori_loop(0, jnp.count_nonzero(group_sizes_X), group, out_LO)
    return zero_ungrouped_rows(out_LO[: x_NI.shape[0]], group_sizes_X)


@partial(jax.jit, static_argnums=0)
def _grouped_outer_product(
    block: int, x_NE: jax.Array, dout_NF: jax.Array, group_sizes_X: jax.Array
) -> jax.Array:
    """Computes `x.T @ dout` for each group: the gradient of the weight."""
    padded_LE, padded_LF = _padded(x_NE, block), _padded(dout_NF, block)

    def group(range_: tuple[jax.Array, jax.Array]) -> jax.Array:
        start, size = range_

        def step(index: jax.Array, total_EF: jax.Array) -> jax.Array:
            is_own_M1 = (index * block + jnp.arange(block) < size)[:, None]
            rows_ME, rows_MF = (
                jnp.where(
                    is_own_M1,
                    jax.lax.dynamic_slice_in_dim(padded, start + index * block, block),
                    0,
                )
                for padded in (padded_LE, padded_LF)
            )
            return total_EF + _matmul("me,mf->ef", rows_ME, rows_MF)

        total_EF = jnp.zeros((x_NE.shape[1], dout_NF.shape[1]), jnp.float32)
        return jax.lax.fori_loop(0, _blocks(size, block), step, total_EF)

    return jax.lax.map(group, (jnp.cumsum(group_sizes_X) - group_sizes_X, group_sizes_X))


def _blocks(size: jax.Array, block: int) -> jax.Array:
    """Returns the number of blocks of a group, rounded up."""
    return (size + block - 1) // block


def _padded(x_NI: jax.Array, block: int) -> jax.Array:
    """Pads by one block, which the last block of the last group may overlap."""
    return jnp.pad(x_NI, [(0, block), (0, 0)])


def _matmul(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)
