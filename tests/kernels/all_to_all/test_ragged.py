"""The ragged all-to-all against the padded one.

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
from dovetail.kernels.all_to_all import all_to_all, inverse_all_to_all
from tests.kernels.all_to_all.test_all_to_all import (
    DEVICES,
    ROWS,
    SIZES,
    on_devices,
    ranges_of,
    rows,
)


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
    """Copies from each sender the rows for this device, to the offset that the sender gives."""
    me = jax.lax.axis_index(axis_name)
    sent = [
        jax.lax.all_gather(array, axis_name)
        for array in (operand, input_offsets, send_sizes, output_offsets)
    ]
    offsets = jnp.arange(output.shape[0])
    for sender in range(input_offsets.shape[0]):
        rows_NE, starts_P, sizes_P, into_P = (array[sender] for array in sent)
        inside = (offsets >= into_P[me]) & (offsets < into_P[me] + recv_sizes[sender])
        # Receive sizes must equal send sizes: otherwise nothing is copied, and a test fails.
        inside &= recv_sizes[sender] == sizes_P[me]
        received = rows_NE.at[offsets - into_P[me] + starts_P[me]].get(mode="fill", fill_value=0)
        output = jnp.where(inside[:, None], received, output)
    return output


def computed(name: str, capacity: int) -> list[np.ndarray]:
    """Returns what is received and comes back, and the gradients of both."""

    def body(x_NE: jax.Array, sizes_1P: jax.Array) -> Any:
        ranges = ranges_of(sizes_1P[0], capacity)

        def both(x_NE: jax.Array) -> Any:
            received_PRE = all_to_all(("group",), capacity, x_NE, ranges)
            return received_PRE, inverse_all_to_all(("group",), ROWS, jnp.sin(received_PRE), ranges)

        (received_PRE, back_NE), vjp = jax.vjp(both, x_NE)
        (dx_NE,) = vjp((jnp.cos(received_PRE), jnp.cos(back_NE)))
        return received_PRE[None], back_NE, dx_NE

    platform = "tpu" if name == "ragged" else "cpu"
    with prefer(all_to_all=name), target_platform(platform):
        return [np.asarray(array) for array in on_devices(body, rows(), SIZES)]


@pytest.mark.parametrize("capacity", [ROWS, 4, 2])
def test_it_sends_what_the_padded_one_sends(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", plain_ragged_all_to_all)
    expected = computed("reference", capacity)
    for got, other in zip(computed("ragged", capacity), expected, strict=True):
        np.testing.assert_array_equal(got, other)
    assert expected[0].shape == (DEVICES, DEVICES, capacity, 3)
