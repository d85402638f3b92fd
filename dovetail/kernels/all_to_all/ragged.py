"""All-to-all by XLA's ragged all-to-all, which sends no padding.

See `op` for the letters.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.all_to_all.op import AxisNames, SendRanges
from dovetail.kernels.dispatch import implementation


def _supports(axes: AxisNames, *_: Any, **__: Any) -> str | None:
    return None if len(axes) == 1 else f"it runs along one mesh axis, not {len(axes)}"


@implementation("ragged", platforms=("tpu", "gpu"), supports=_supports)
def ragged(
    axes: AxisNames, size: int, x: jax.Array, ranges: SendRanges, *, inverse: bool
) -> jax.Array:
    """Sends rows; `size` is the capacity R, or N for the inverse."""
    (axis,) = axes
    devices = ranges.sizes_P.shape[0]
    recv_sizes_P = _transpose(ranges.sizes_P, axis)
    device_P = jnp.arange(devices, dtype=jnp.int32)
    if inverse:
        capacity, width = x.shape[1:]
        output = jnp.zeros((size, width), x.dtype)
        # Every range goes back to its start, which only the device that it came from knows.
        output_offsets_P = _transpose(ranges.starts_P, axis)
        arguments = (device_P * capacity, recv_sizes_P, output_offsets_P, ranges.sizes_P)
        return _ragged_all_to_all(x.reshape(-1, width), output, arguments, axis)
    output = jnp.zeros((devices * size, x.shape[-1]), x.dtype)
    output_offsets_P = jnp.full((devices,), jax.lax.axis_index(axis) * size)
    arguments = (ranges.starts_P, ranges.sizes_P, output_offsets_P, recv_sizes_P)
    return _ragged_all_to_all(x, output, arguments, axis).reshape(devices, size, -1)


def _transpose(numbers_P: jax.Array, axis: str) -> jax.Array:
    """Sends number p to device p; returns the numbers that this device receives."""
    return jax.lax.all_to_all(numbers_P, axis, 0, 0, tiled=True)


def _ragged_all_to_all(
    x: jax.Array, output: jax.Array, arguments: tuple[jax.Array, ...], axis: str
) -> jax.Array:
    """Takes input offsets, send sizes, output offsets and receive sizes."""
    numbers = (array.astype(jnp.int32) for array in arguments)
    return jax.lax.ragged_all_to_all(x, output, *numbers, axis_name=axis)
