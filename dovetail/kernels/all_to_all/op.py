"""The all-to-all op: every device sends a range of its rows to each device of a group.

It runs inside a `shard_map`, and moves tokens to experts on other devices. The all-to-all and its
inverse are linear, and each is the other's gradient.

N rows of a device, P devices of the group, R capacity: rows that one device takes from another, E
width.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from dovetail.kernels.dispatch import Op

all_to_all_op = Op("all_to_all")  # `__init__.py` lists its implementations
AxisNames = tuple[str, ...]


class SendRanges(NamedTuple):
    """Where the rows for each device start, and how many there are: at most R."""

    starts_P: jax.Array
    sizes_P: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def all_to_all(axes: AxisNames, capacity: int, x_NE: jax.Array, ranges: SendRanges) -> jax.Array:
    """Sends range p of the rows to device p; returns the received rows, [P, R, E], by sender.

    The rows of each sender are padded with zeros.

    Args:
        axes: the mesh axes of the group.
        capacity: how many rows are taken from each sender, R.
        x_NE: the rows.
        ranges: which of them go where.
    """
    received_PRE: jax.Array = all_to_all_op(axes, capacity, x_NE, ranges, inverse=False)
    return received_PRE


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def inverse_all_to_all(
    axes: AxisNames, num_rows: int, x_PRE: jax.Array, ranges: SendRanges
) -> jax.Array:
    """Sends the rows of `all_to_all` back; returns [N, E], with zeros where nothing was sent."""
    x_NE: jax.Array = all_to_all_op(axes, num_rows, x_PRE, ranges, inverse=True)
    return x_NE


def _define_gradient(run: Any, transposed: Any, size_axis: int) -> None:
    """Defines the gradient of one by the other, which takes the size along an axis of the input."""

    def forward(axes: AxisNames, size: int, x: jax.Array, ranges: SendRanges) -> Any:
        return run(axes, size, x, ranges), (x.shape[size_axis], ranges)

    def backward(axes: AxisNames, size: int, saved: Any, gradient: jax.Array) -> Any:
        size_before, ranges = saved
        return transposed(axes, size_before, gradient, ranges), _zero_gradient(ranges)

    run.defvjp(forward, backward)


_define_gradient(all_to_all, inverse_all_to_all, size_axis=0)
_define_gradient(inverse_all_to_all, all_to_all, size_axis=1)


def _zero_gradient(ranges: SendRanges) -> SendRanges:
    """Returns the gradient of integers."""
    zeros = [np.zeros(array.shape, jax.dtypes.float0) for array in ranges]
    return SendRanges(*zeros)  # type: ignore[arg-type]  # JAX asks for float0
