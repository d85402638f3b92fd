"""The ragged exchange against the padded one.

XLA for CPUs has no ragged all-to-all. Here JAX's is replaced by what its documentation says, made
of plain gathers: so the offsets and sizes that it is given are checked, not XLA itself.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels import prefer, target_platform
from dovetail.kernels.exchange import exchange, exchange_back
from tests.kernels.exchange.test_exchange import DEVICES, ROWS, SIZES, on_devices, rows, runs_of


def plain_ragged_all_to_all(
    operand: jax.Array,
    output: jax.Array,
    input_offsets: jax.Array,
    send_sizes: jax.Array,
    output_offsets: jax.Array,
    recv_sizes: jax.Array,
    *,
    axis_name: str,
) -> jax.Array:
    """Takes from each sender what is meant for this device, to where the sender says."""
    me = jax.lax.axis_index(axis_name)
    sent = [
        jax.lax.all_gather(array, axis_name)
        for array in (operand, input_offsets, send_sizes, output_offsets)
    ]
    places = jnp.arange(output.shape[0])
    for sender in range(input_offsets.shape[0]):
        rows_NE, starts_P, sizes_P, into_P = (array[sender] for array in sent)
        inside = (places >= into_P[me]) & (places < into_P[me] + recv_sizes[sender])
        # What is received must be what is sent: otherwise nothing comes, and a test fails.
        inside &= recv_sizes[sender] == sizes_P[me]
        came = rows_NE.at[places - into_P[me] + starts_P[me]].get(mode="fill", fill_value=0)
        output = jnp.where(inside[:, None], came, output)
    return output


def computed(name: str, room: int) -> list[np.ndarray]:
    """Returns what comes and comes back, and the gradients of both ways."""

    def body(x_NE: jax.Array, sizes_1P: jax.Array) -> Any:
        runs = runs_of(sizes_1P[0], room)

        def both(x_NE: jax.Array) -> Any:
            came_PRE = exchange(("group",), room, x_NE, runs)
            return came_PRE, exchange_back(("group",), ROWS, jnp.sin(came_PRE), runs)

        (came_PRE, back_NE), pull = jax.vjp(both, x_NE)
        (by_x_NE,) = pull((jnp.cos(came_PRE), jnp.cos(back_NE)))
        return came_PRE[None], back_NE, by_x_NE

    platform = "tpu" if name == "ragged" else "cpu"
    with prefer(exchange=name), target_platform(platform):
        return [np.asarray(array) for array in on_devices(body, rows(), SIZES)]


@pytest.mark.parametrize("room", [ROWS, 4, 2])
def test_it_sends_what_the_padded_one_sends(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", plain_ragged_all_to_all)
    expected = computed("reference", room)
    for got, other in zip(computed("ragged", room), expected, strict=True):
        np.testing.assert_array_equal(got, other)
    assert expected[0].shape == (DEVICES, DEVICES, room, 3)
