"""Grouped matmul for the CPU: a loop over the groups, and within a group over blocks of its rows.

XLA on the CPU has no ragged product of its own: it multiplies every row with every matrix. Here the
work is that of N rows and of less than one block more for each group, and in the forward pass the
matrix of an empty group is not even read.

A group's last block reaches into the rows of the next one. What it computes for those is wrong, and
is written over when their own group comes; what stands after the last group is cleared at the end.

N rows, X groups, E width of the rows, F width of the result, M rows of a block.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.grouped_matmul.op import grouped_matmul_op, keep_grouped_rows
from dovetail.kernels.sharded import is_split

# Rows of a block. Small ones waste fewer rows at the ends of groups, large ones multiply faster.
SMALLEST_BLOCK = 16
LARGEST_BLOCK = 256


def _supports(x_NE: jax.Array, weight_XEF: jax.Array, *_: Any) -> str | None:
    if x_NE.shape[0] == 0:
        return "there are no rows"
    if weight_XEF.shape[0] == 1:
        return "one group needs no loop"
    if is_split():
        return "the rows may be split over devices, and its blocks would cross from one to another"
    return None


@grouped_matmul_op.register("blocked", platforms=("cpu",), supports=_supports, before="reference")
def blocked(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Computes block by block; see `grouped_matmul` for the arguments."""
    block = block_rows(x_NE.shape[0], weight_XEF.shape[0])
    return _multiply(block, x_NE, weight_XEF, group_sizes_X)


def block_rows(rows: int, groups: int) -> int:
    """Returns how many rows a block has: a power of two, about half of what an even group has."""
    block = SMALLEST_BLOCK
    while block < LARGEST_BLOCK and 2 * block * groups < rows:
        block *= 2
    return block


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply(
    block: int, x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array
) -> jax.Array:
    return _by_blocks("me,ef->mf", block, x_NE, weight_XEF, group_sizes_X)


def _forward(
    block: int, x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _multiply(block, x_NE, weight_XEF, group_sizes_X), (x_NE, weight_XEF, group_sizes_X)


def _backward(
    block: int, kept: tuple[jax.Array, ...], gradient_NF: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x_NE, weight_XEF, group_sizes_X = kept
    by_x_NE = _by_blocks("mf,ef->me", block, gradient_NF, weight_XEF, group_sizes_X)
    by_weight_XEF = _by_group(block, x_NE, gradient_NF, group_sizes_X)
    return by_x_NE.astype(x_NE.dtype), by_weight_XEF.astype(weight_XEF.dtype), None


_multiply.defvjp(_forward, _backward)


# Compiled apart, so that JAX goes through these loops once for all products of one shape.
@partial(jax.jit, static_argnums=(0, 1))
def _by_blocks(
    subscripts: str, block: int, x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array
) -> jax.Array:
    """Multiplies the rows of each group with its matrix, over the axis that both name."""
    padded_NE = _padded(x_NE, block)
    starts_X = jnp.cumsum(group_sizes_X) - group_sizes_X
    (filled_X,) = jnp.nonzero(group_sizes_X, size=group_sizes_X.size)  # in order, then zeros

    def group(turn: jax.Array, result_NF: jax.Array) -> jax.Array:
        number = filled_X[turn]
        matrix_EF = weight_XEF[number]

        def step(index: jax.Array, result_NF: jax.Array) -> jax.Array:
            start = starts_X[number] + index * block
            rows_ME = jax.lax.dynamic_slice_in_dim(padded_NE, start, block)
            made_MF = _product(subscripts, rows_ME, matrix_EF).astype(result_NF.dtype)
            return jax.lax.dynamic_update_slice_in_dim(result_NF, made_MF, start, axis=0)

        blocks = _blocks(group_sizes_X[number], block)
        return jax.lax.fori_loop(0, blocks, step, result_NF)

    width = jax.eval_shape(
        lambda x_NE, weight_XEF: _product(subscripts, x_NE, weight_XEF[0]), x_NE, weight_XEF
    ).shape[1]
    result_NF = jnp.zeros((padded_NE.shape[0], width), x_NE.dtype)
    result_NF = jax.lax.fori_loop(0, jnp.count_nonzero(group_sizes_X), group, result_NF)
    return keep_grouped_rows(result_NF[: x_NE.shape[0]], group_sizes_X)


@partial(jax.jit, static_argnums=0)
def _by_group(
    block: int, x_NE: jax.Array, gradient_NF: jax.Array, group_sizes_X: jax.Array
) -> jax.Array:
    """Returns each group's sum of the outer products of its rows: the gradient of the weight."""
    padded_NE, padded_NF = _padded(x_NE, block), _padded(gradient_NF, block)

    def group(place: tuple[jax.Array, jax.Array]) -> jax.Array:
        start, size = place

        def step(index: jax.Array, total_EF: jax.Array) -> jax.Array:
            is_own_M1 = (index * block + jnp.arange(block) < size)[:, None]
            rows_ME, rows_MF = (
                jnp.where(
                    is_own_M1,
                    jax.lax.dynamic_slice_in_dim(padded, start + index * block, block),
                    0,
                )
                for padded in (padded_NE, padded_NF)
            )
            return total_EF + _product("me,mf->ef", rows_ME, rows_MF)

        total_EF = jnp.zeros((x_NE.shape[1], gradient_NF.shape[1]), jnp.float32)
        return jax.lax.fori_loop(0, _blocks(size, block), step, total_EF)

    return jax.lax.map(group, (jnp.cumsum(group_sizes_X) - group_sizes_X, group_sizes_X))


def _blocks(size: jax.Array, block: int) -> jax.Array:
    """Returns how many blocks a group of rows fills, the last of them perhaps in part."""
    return (size + block - 1) // block


def _padded(x_NE: jax.Array, block: int) -> jax.Array:
    """Adds a block of zeros, into which the last block of the last group may reach."""
    return jnp.pad(x_NE, [(0, block), (0, 0)])


def _product(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)
