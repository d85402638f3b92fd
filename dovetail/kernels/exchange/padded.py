"""The exchange by a plain all-to-all, in which every run is filled up to the same length.

It sends R rows to every device, however few there are. See `op` for the letters.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.kernels.exchange.op import AxisNames, Runs, exchange_op
from dovetail.kernels.registry import current_platform


@exchange_op.register("reference", slow=lambda *_, **__: current_platform() != "cpu")
def padded(axes: AxisNames, size: int, x: jax.Array, runs: Runs, *, back: bool) -> jax.Array:
    """Exchanges rows; `size` is R on the way there, and N on the way back."""
    return _back(axes, size, x, runs) if back else _there(axes, size, x, runs)


def _there(axes: AxisNames, room: int, x_NE: jax.Array, runs: Runs) -> jax.Array:
    offsets_R = jnp.arange(room)
    index_PR = runs.starts_P[:, None] + offsets_R
    x_PRE = x_NE.at[index_PR].get(mode="fill", fill_value=0)
    x_PRE = jnp.where((offsets_R < runs.sizes_P[:, None])[..., None], x_PRE, 0)
    return jax.lax.all_to_all(x_PRE, axes, 0, 0, tiled=True)


def _back(axes: AxisNames, count: int, x_PRE: jax.Array, runs: Runs) -> jax.Array:
    room, width = x_PRE.shape[1:]
    x_PRE = jax.lax.all_to_all(x_PRE, axes, 0, 0, tiled=True)
    offsets_R = jnp.arange(room)
    inside_PR = offsets_R < runs.sizes_P[:, None]
    index_PR = jnp.where(inside_PR, runs.starts_P[:, None] + offsets_R, count)
    back_NE = jnp.zeros((count, width), x_PRE.dtype)
    return back_NE.at[index_PR.reshape(-1)].set(x_PRE.reshape(-1, width), mode="drop")
