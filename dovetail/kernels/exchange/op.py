"""The exchange op: every device sends a run of its rows to each device of a group, and gets theirs.

It runs where a `shard_map` has split the arrays, and is what experts on several devices need. Both
ways are linear, and each is the other's gradient.

N rows of a device, P devices of the group, R rows that one device takes from another, E width.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import numpy as np

from dovetail.kernels.registry import Op

exchange_op = Op("exchange")
AxisNames = tuple[str, ...]


class Runs(NamedTuple):
    """Where the run of rows for each device begins, and how many rows it has: R at the most."""

    starts_P: jax.Array
    sizes_P: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def exchange(axes: AxisNames, room: int, x_NE: jax.Array, runs: Runs) -> jax.Array:
    """Sends run p of the rows to device p; returns what came, [P, R, E], by sender.

    After the rows that a sender had there are zeros.

    Args:
        axes: the mesh axes along which the group's devices lie.
        room: how many rows are taken from each sender, R.
        x_NE: the rows.
        runs: which of them go where.
    """
    came_PRE: jax.Array = exchange_op(axes, room, x_NE, runs, back=False)
    return came_PRE


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def exchange_back(axes: AxisNames, count: int, x_PRE: jax.Array, runs: Runs) -> jax.Array:
    """Sends back what came by `exchange`; returns [N, E], with zeros where nothing was sent."""
    back_NE: jax.Array = exchange_op(axes, count, x_PRE, runs, back=True)
    return back_NE


exchange.defvjp(
    lambda axes, room, x_NE, runs: (exchange(axes, room, x_NE, runs), (x_NE.shape[0], runs)),
    lambda axes, room, kept, g: (exchange_back(axes, kept[0], g, kept[1]), _nothing(kept[1])),
)
exchange_back.defvjp(
    lambda axes, count, x, runs: (exchange_back(axes, count, x, runs), (x.shape[1], runs)),
    lambda axes, count, kept, g: (exchange(axes, kept[0], g, kept[1]), _nothing(kept[1])),
)


def _nothing(runs: Runs) -> Runs:
    """Returns the gradient of whole numbers."""
    none = [np.zeros(array.shape, jax.dtypes.float0) for array in runs]
    return Runs(*none)  # type: ignore[arg-type]  # what JAX asks for
