"""All-to-all and its inverse: what arrives where, and the gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from dovetail.kernels.all_to_all import SendRanges, all_to_all, inverse_all_to_all

DEVICES, ROWS, WIDTH = 4, 10, 3
SPLIT = PartitionSpec("group")
# How many rows each device sends to each: some none, some more than the capacity.
SIZES = np.asarray([[3, 0, 5, 2], [0, 10, 0, 0], [1, 1, 1, 1], [2, 3, 4, 1]])


def on_devices(body: Any, *arrays: Any) -> Any:
    mesh = Mesh(np.asarray(jax.devices()[:DEVICES]), ("group",))
    run = jax.shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT, check_vma=False)
    return jax.jit(run)(*arrays)


def ranges_of(sizes_P: jax.Array, capacity: int) -> SendRanges:
    return SendRanges(jnp.cumsum(sizes_P) - sizes_P, jnp.minimum(sizes_P, capacity))


def rows() -> jax.Array:
    return jnp.arange(1.0, 1 + DEVICES * ROWS * WIDTH).reshape(DEVICES * ROWS, WIDTH)


def sent(capacity: int) -> tuple[np.ndarray, np.ndarray]:
    def body(x_NE: jax.Array, sizes_1P: jax.Array) -> Any:
        ranges = ranges_of(sizes_1P[0], capacity)
        received_PRE = all_to_all(("group",), capacity, x_NE, ranges)
        return received_PRE[None], inverse_all_to_all(("group",), ROWS, received_PRE, ranges)

    received, back = on_devices(body, rows(), SIZES)
    return np.asarray(received), np.asarray(back).reshape(DEVICES, ROWS, WIDTH)


def test_rows_arrive_by_sender_and_come_back() -> None:
    received, back = sent(capacity=ROWS)
    x = np.asarray(rows()).reshape(DEVICES, ROWS, WIDTH)
    for sender in range(DEVICES):
        stops = np.cumsum(SIZES[sender])
        for receiver, size in enumerate(SIZES[sender]):
            run = x[sender, stops[receiver] - size : stops[receiver]]
            np.testing.assert_array_equal(received[receiver, sender, :size], run)
            assert not received[receiver, sender, size:].any()
        np.testing.assert_array_equal(back[sender, : stops[-1]], x[sender, : stops[-1]])
        assert not back[sender, stops[-1] :].any()


def test_dropped_rows_come_back_as_zeros() -> None:
    _, back = sent(capacity=2)
    x = np.asarray(rows()).reshape(DEVICES, ROWS, WIDTH)
    for sender in range(DEVICES):
        kept = [(np.arange(size) < 2) for size in SIZES[sender]]
        found = np.pad(np.concatenate(kept), (0, ROWS - SIZES[sender].sum()))
        np.testing.assert_array_equal(back[sender], np.where(found[:, None], x[sender], 0))


def test_each_is_the_gradient_of_the_other() -> None:
    weights = jnp.arange(1.0, 1 + DEVICES * DEVICES * ROWS * WIDTH)
    weights = weights.reshape(DEVICES * DEVICES, ROWS, WIDTH)

    def body(x_NE: jax.Array, sizes_1P: jax.Array, weight_PRE: jax.Array) -> Any:
        ranges = ranges_of(sizes_1P[0], ROWS)

        def forward(x: jax.Array) -> jax.Array:
            return all_to_all(("group",), ROWS, x, ranges)

        def inverse(x: jax.Array) -> jax.Array:
            return inverse_all_to_all(("group",), ROWS, x, ranges)

        _, vjp = jax.vjp(forward, x_NE)
        _, inverse_vjp = jax.vjp(inverse, weight_PRE)
        return vjp(weight_PRE)[0] - inverse(weight_PRE), inverse_vjp(x_NE)[0] - forward(x_NE)

    for difference in on_devices(body, rows(), SIZES, weights):
        assert not np.asarray(difference).any()
