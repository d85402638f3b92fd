"""Grouped matmul by `jax.lax.ragged_dot`: correct everywhere, slow on accelerators.

On CPUs and GPUs XLA multiplies every row with every matrix and masks the result: X times the work,
and X copies of the rows (seen for an H100 with JAX 0.10.2). On TPUs it does so only for the
gradient of the weight, which makes six times the work in all for 16 groups (docs/log.md). On a CPU
it gives no warning: there it runs only for one group, or where rows are sharded over several CPU
devices, as in tests.

N rows, X groups, E width of the rows, F width of the result.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.dispatch import current_platform, implementation
from dovetail.kernels.grouped_matmul.op import zero_ungrouped_rows


def _is_slow(x_NE: jax.Array, weight_XEF: jax.Array, *_: Any) -> bool:
    return current_platform() != "cpu" and weight_XEF.shape[0] > 1


@implementation("reference", slow=_is_slow)
def reference(x_NE: jax.Array, weight_XEF: jax.Array, group_sizes_X: jax.Array) -> jax.Array:
    """Computes all groups in one `ragged_dot`; see `grouped_matmul` for the arguments."""
    # What ragged_dot returns for rows in no group is not documented: zero them before and after.
    out_NF = jax.lax.ragged_dot(
        zero_ungrouped_rows(x_NE, group_sizes_X),
        weight_XEF,
        group_sizes_X,
        preferred_element_type=jnp.float32,
    )
    return zero_ungrouped_rows(out_NF, group_sizes_X).astype(x_NE.dtype)
