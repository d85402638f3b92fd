"""All-to-all with padding: every range is padded to the capacity.

It sends R rows to every device, however few there are. See `op` for the letters.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.kernels.all_to_all.op import AxisNames, SendRanges
from dovetail.kernels.dispatch import current_platform, implementation


@implementation("reference", slow=lambda *_, **__: current_platform() != "cpu")
def reference(
    axes: AxisNames, size: int, x: jax.Array, ranges: SendRanges, *, inverse: bool
) -> jax.Array:
    """Sends rows; `size` is the capacity R, or N for the inverse."""
    return _inverse(axes, size, x, ranges) if inverse else _forward(axes, size, x, ranges)


def _forward(axes: AxisNames, capacity: int, x_NE: jax.Array, ranges: SendRanges) -> jax.Array:
    offsets_R = jnp.arange(capacity)
    index_PR = ranges.starts_P[:, None] + offsets_R
    x_PRE = x_NE.at[index_PR].get(mode="fill", fill_value=0)
    x_PRE = jnp.where((offsets_R < ranges.sizes_P[:, None])[..., None], x_PRE, 0)
    return jax.lax.all_to_all(x_PRE, axes, 0, 0, tiled=True)


def _inverse(axes: AxisNames, num_rows: int, x_PRE: jax.Array, ranges: SendRanges) -> jax.Array:
    capacity, width = x_PRE.shape[1:]
    x_PRE = jax.lax.all_to_all(x_PRE, axes, 0, 0, tiled=True)
    offsets_R = jnp.arange(capacity)
    inside_PR = offsets_R < ranges.sizes_P[:, None]
    index_PR = jnp.where(inside_PR, ranges.starts_P[:, None] + offsets_R, num_rows)
    x_NE = jnp.zeros((num_rows, width), x_PRE.dtype)
    return x_NE.at[index_PR.reshape(-1)].set(x_PRE.reshape(-1, width), mode="drop")
