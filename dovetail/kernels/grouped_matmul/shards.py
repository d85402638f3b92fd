"""Sorted rows under a mesh: equal shards, even where that cuts through a group.

Each device counts the rows of each group in its own shard. The matrices are replicated.

N rows, X groups, E width of the rows, F width of the result, L rows of a shard with padding.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from dovetail.kernels.grouped_matmul.vjp import GroupedKernels, multiply
from dovetail.kernels.sharded import indivisible, logical_shard_map, num_shards

ROW_AXES = ("batch", "sequence", "mlp")  # also devices that shard widths get rows


def row_shards_refusal(x_NE: jax.Array, weight_XEF: jax.Array, tile: int) -> str | None:
    """Returns why a kernel over tiles of float32 or bfloat16 rows cannot take these, or None."""
    rows = x_NE.shape[0] // num_shards(*ROW_AXES)
    if rows < tile:
        return f"{rows} rows on a device are fewer than a tile of {tile}"
    for dtype in (x_NE.dtype, weight_XEF.dtype):
        if dtype not in (jnp.float32, jnp.bfloat16):
            return f"it takes float32 or bfloat16, not {dtype}"
    return indivisible("rows", x_NE.shape[0], *ROW_AXES)


def run_on_row_shards(
    kernels: GroupedKernels,
    tile: int,
    x_NE: jax.Array,
    weight_XEF: jax.Array,
    group_sizes_X: jax.Array,
) -> jax.Array:
    """Multiplies each device's shard of the rows, padded to a multiple of the tile."""
    run = logical_shard_map(
        functools.partial(_run_on_shard, kernels, tile),
        in_axes=((ROW_AXES, None), (None, None, None), (None,), (ROW_AXES,)),
        out_axes=(ROW_AXES, None),
    )
    out_NF: jax.Array = run(x_NE, weight_XEF, group_sizes_X, jnp.arange(x_NE.shape[0]))
    return out_NF


def sizes_within(group_sizes_X: jax.Array, start: jax.Array, rows: int) -> jax.Array:
    """Returns how many rows of each group are in a range of the sorted rows."""
    stops_X = jnp.cumsum(group_sizes_X)
    inside = functools.partial(jnp.clip, min=start, max=start + rows)
    return inside(stops_X) - inside(stops_X - group_sizes_X)


def _run_on_shard(
    kernels: GroupedKernels,
    tile: int,
    x_NE: jax.Array,
    weight_XEF: jax.Array,
    group_sizes_X: jax.Array,
    index_N: jax.Array,
) -> jax.Array:
    """Multiplies one shard of the rows; `index_N` is their index among all rows."""
    rows = x_NE.shape[0]
    sizes_X = sizes_within(group_sizes_X, index_N[0], rows).astype(jnp.int32)
    missing = -rows % tile
    padded_LE = jnp.pad(x_NE, [(0, missing), (0, 0)]) if missing else x_NE
    return multiply(kernels, padded_LE, weight_XEF, sizes_X)[:rows]
