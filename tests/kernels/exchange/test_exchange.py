"""Rows sent to other devices and back: what arrives where, and the gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from dovetail.kernels.exchange import Runs, exchange, exchange_back

DEVICES, ROWS, WIDTH = 4, 10, 3
SPLIT = PartitionSpec("group")
# How many rows each device sends to each: some none, some more than there is room for.
SIZES = np.asarray([[3, 0, 5, 2], [0, 10, 0, 0], [1, 1, 1, 1], [2, 3, 4, 1]])


def on_devices(body: Any, *arrays: Any) -> Any:
    mesh = Mesh(np.asarray(jax.devices()[:DEVICES]), ("group",))
    run = jax.shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT, check_vma=False)
    return jax.jit(run)(*arrays)


def runs_of(sizes_P: jax.Array, room: int) -> Runs:
    return Runs(jnp.cumsum(sizes_P) - sizes_P, jnp.minimum(sizes_P, room))


def rows() -> jax.Array:
    return jnp.arange(1.0, 1 + DEVICES * ROWS * WIDTH).reshape(DEVICES * ROWS, WIDTH)


def sent(room: int) -> tuple[np.ndarray, np.ndarray]:
    def body(x_NE: jax.Array, sizes_1P: jax.Array) -> Any:
        runs = runs_of(sizes_1P[0], room)
        came_PRE = exchange(("group",), room, x_NE, runs)
        return came_PRE[None], exchange_back(("group",), ROWS, came_PRE, runs)

    came, back = on_devices(body, rows(), SIZES)
    return np.asarray(came), np.asarray(back).reshape(DEVICES, ROWS, WIDTH)


def test_runs_arrive_by_sender_and_come_back() -> None:
    came, back = sent(room=ROWS)
    x = np.asarray(rows()).reshape(DEVICES, ROWS, WIDTH)
    for sender in range(DEVICES):
        stops = np.cumsum(SIZES[sender])
        for receiver, size in enumerate(SIZES[sender]):
            run = x[sender, stops[receiver] - size : stops[receiver]]
            np.testing.assert_array_equal(came[receiver, sender, :size], run)
            assert not came[receiver, sender, size:].any()
        np.testing.assert_array_equal(back[sender, : stops[-1]], x[sender, : stops[-1]])
        assert not back[sender, stops[-1] :].any()


def test_what_finds_no_room_comes_back_as_zeros() -> None:
    _, back = sent(room=2)
    x = np.asarray(rows()).reshape(DEVICES, ROWS, WIDTH)
    for sender in range(DEVICES):
        places = [(np.arange(size) < 2) for size in SIZES[sender]]
        found = np.pad(np.concatenate(places), (0, ROWS - SIZES[sender].sum()))
        np.testing.assert_array_equal(back[sender], np.where(found[:, None], x[sender], 0))


def test_each_way_is_the_gradient_of_the_other() -> None:
    weights = jnp.arange(1.0, 1 + DEVICES * DEVICES * ROWS * WIDTH)
    weights = weights.reshape(DEVICES * DEVICES, ROWS, WIDTH)

    def body(x_NE: jax.Array, sizes_1P: jax.Array, weight_PRE: jax.Array) -> Any:
        runs = runs_of(sizes_1P[0], ROWS)

        def there(x: jax.Array) -> jax.Array:
            return exchange(("group",), ROWS, x, runs)

        def back(x: jax.Array) -> jax.Array:
            return exchange_back(("group",), ROWS, x, runs)

        _, pull = jax.vjp(there, x_NE)
        _, pull_back = jax.vjp(back, weight_PRE)
        return pull(weight_PRE)[0] - back(weight_PRE), pull_back(x_NE)[0] - there(x_NE)

    for difference in on_devices(body, rows(), SIZES, weights):
        assert not np.asarray(difference).any()
