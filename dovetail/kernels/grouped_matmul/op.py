"""The grouped matmul op: each group of rows times its own matrix, as in mixtures of experts.

N rows, X groups, E width of the rows, F width of the result.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.kernels.dispatch import Op

grouped_matmul_op = Op("grouped_matmul")  # `__init__.py` lists its implementations


def grouped_matmul(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Multiplies the rows of each group with the matrix of the group.

    Args:
        x_NE: the rows, sorted by group: first those of group 0, then those of group 1, and so on.
        weight_XEF: a matrix for each group.
        group_sizes_X: the rows of each group, 0 or more, and at most N together.

    Returns:
        [N, F] in the dtype of the rows, accumulated in float32. Rows after the last group give
        zeros, whatever they hold, and have no gradient.
    """
    _check(x_NE, weight_XEF, group_sizes_X)
    out_NF: jax.Array = grouped_matmul_op(x_NE, weight_XEF, group_sizes_X)
    return out_NF


def zero_ungrouped_rows(x_NE: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Zeroes the rows that are in no group."""
    return jnp.where((jnp.arange(x_NE.shape[0]) < group_sizes_X.sum())[:, None], x_NE, 0)


def _check(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> None:
    if x_NE.ndim != 2 or weight_XEF.ndim != 3 or x_NE.shape[1] != weight_XEF.shape[1]:
        raise _wrong(
            "x of [rows, width] and weight of [groups, width, width of the result]",
            f"{x_NE.shape} and {weight_XEF.shape}",
        )
    for name, array in (("x_NE", x_NE), ("weight_XEF", weight_XEF)):
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise _wrong(f"{name} of a floating dtype", f"{array.dtype}")
    shape = weight_XEF.shape[:1]
    if group_sizes_X.shape != shape or not jnp.issubdtype(group_sizes_X.dtype, jnp.integer):
        raise _wrong(
            f"group_sizes_X of shape {shape} and integers",
            f"{group_sizes_X.shape} {group_sizes_X.dtype}",
        )


def _wrong(expected: str, got: str) -> ValueError:
    return ValueError(f"grouped_matmul: expected {expected}, got {got}.")
