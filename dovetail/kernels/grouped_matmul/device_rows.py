"""Sorted rows under a mesh: equal runs, one a device, wherever that cuts through a group.

Each device counts how many rows of each group its own run holds. The matrices are gathered.

N rows, X groups, E width of the rows, F width of the result.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from dovetail.kernels.grouped_matmul.products import Products, multiply
from dovetail.kernels.sharded import indivisible, on_each_device, parts

ROW_AXES = ("batch", "sequence", "mlp")  # all devices share the rows, also those that split widths


def rows_refusal(x_NE: jax.Array, weight_XEF: jax.Array, tile: int) -> str | None:
    """Returns why a kernel that takes tiles of float32 or bfloat16 rows cannot take these."""
    rows = x_NE.shape[0] // parts(*ROW_AXES)
    if rows < tile:
        return f"{rows} rows on a device are fewer than a tile of {tile}"
    for dtype in (x_NE.dtype, weight_XEF.dtype):
        if dtype not in (jnp.float32, jnp.bfloat16):
            return f"it takes float32 or bfloat16, not {dtype}"
    return indivisible("rows", x_NE.shape[0], *ROW_AXES)


def on_device_rows(
    products: Products,
    tile: int,
    x_NE: jax.Array,
    weight_XEF: jax.Array,
    group_sizes_X: jax.Array,
) -> jax.Array:
    """Multiplies each device's run of rows, filled up to whole tiles."""
    run = on_each_device(
        functools.partial(_on_device, products, tile),
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
    products: Products,
    tile: int,
    x_NE: jax.Array,
    weight_XEF: jax.Array,
    group_sizes_X: jax.Array,
    numbers_N: jax.Array,
) -> jax.Array:
    """Multiplies one device's run of rows, which know their numbers among all."""
    rows = x_NE.shape[0]
    sizes_X = sizes_within(group_sizes_X, numbers_N[0], rows).astype(jnp.int32)
    missing = -rows % tile
    padded_NE = jnp.pad(x_NE, [(0, missing), (0, 0)]) if missing else x_NE
    return multiply(products, padded_NE, weight_XEF, sizes_X)[:rows]
