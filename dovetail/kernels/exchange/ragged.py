"""The exchange by XLA's ragged all-to-all, which sends the rows that there are and no more.

See `op` for the letters.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.exchange.op import AxisNames, Runs, exchange_op


def _supports(axes: AxisNames, *_: Any, **__: Any) -> str | None:
    return None if len(axes) == 1 else f"it exchanges along one mesh axis, not {len(axes)}"


@exchange_op.register("ragged", platforms=("tpu", "gpu"), supports=_supports, before="reference")
def ragged(axes: AxisNames, size: int, x: jax.Array, runs: Runs, *, back: bool) -> jax.Array:
    """Exchanges rows; `size` is R on the way there, and N on the way back."""
    (axis,) = axes
    devices = runs.sizes_P.shape[0]
    came_P = _told(runs.sizes_P, axis)  # how many rows each device sends to this one
    slots_P = jnp.arange(devices, dtype=jnp.int32)
    if back:
        room, width = x.shape[1:]
        into = jnp.zeros((size, width), x.dtype)
        # Every run goes to where it began, which the device that it came from has to say.
        starts_P = _told(runs.starts_P, axis)
        sent = (slots_P * room, came_P, starts_P, runs.sizes_P)
        return _sent(x.reshape(-1, width), into, sent, axis)
    into = jnp.zeros((devices * size, x.shape[-1]), x.dtype)
    mine_P = jnp.full((devices,), jax.lax.axis_index(axis) * size)
    came = _sent(x, into, (runs.starts_P, runs.sizes_P, mine_P, came_P), axis)
    return came.reshape(devices, size, -1)


def _told(numbers_P: jax.Array, axis: str) -> jax.Array:
    """Tells each device its number; returns what this one is told."""
    return jax.lax.all_to_all(numbers_P, axis, 0, 0, tiled=True)


def _sent(x: jax.Array, into: jax.Array, plan: tuple[jax.Array, ...], axis: str) -> jax.Array:
    numbers = (array.astype(jnp.int32) for array in plan)
    return jax.lax.ragged_all_to_all(x, into, *numbers, axis_name=axis)
