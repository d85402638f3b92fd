"""Grouped matmul by `jax.lax.ragged_dot`: right everywhere, and on accelerators slow.

On CPUs and GPUs XLA multiplies every row with every matrix and keeps what counts: X times the work,
and X copies of the rows (seen for an H100 with JAX 0.10.2). On TPUs it does so for the gradient of
the weight alone, which is six times the work in all for 16 groups (docs/log.md). On a CPU it gives
no warning all the same: there it runs only for one group, or where rows are split over several CPU
devices, which is for tests.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.grouped_matmul.op import grouped_matmul_op, keep_grouped_rows
from dovetail.kernels.registry import current_platform


def _is_slow(x_NE: jax.Array, weight_XEF: jax.Array, *_: Any) -> bool:
    return current_platform() != "cpu" and weight_XEF.shape[0] > 1


@grouped_matmul_op.register("reference", slow=_is_slow)
def reference(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Computes all groups in one ragged product; see `grouped_matmul` for the arguments."""
    # What ragged_dot makes of rows in no group is not documented, so they go in and out as zeros.
    result_NF = jax.lax.ragged_dot(
        keep_grouped_rows(x_NE, group_sizes_X),
        weight_XEF,
        group_sizes_X,
        preferred_element_type=jnp.float32,
    )
    return keep_grouped_rows(result_NF, group_sizes_X).astype(x_NE.dtype)
