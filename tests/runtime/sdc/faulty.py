"""Devices that compute wrong results, simulated: a bit is flipped in what one of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np


def flip(array: jax.Array, device: jax.Device) -> jax.Array:
    """Flips a bit of the first element that a device has, one that matters."""
    shards = []
    for shard in array.addressable_shards:
        data = np.array(shard.data)
        if shard.device == device:
            is_float = jax.numpy.issubdtype(data.dtype, np.floating)
            byte = data.itemsize - 2 if is_float else 0  # the upper end of the mantissa
            data.reshape(-1).view(np.uint8)[byte] ^= 1
        shards.append(jax.device_put(data, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)


class FaultyDevice:
    """A device with a fault: in its calls of a compiled step, or in some of them.

    Attributes:
        device: the device.
        path: a parameter, of which it has a wrong value after the step; or None: it reads a wrong
            batch, and its error reaches all others through collectives.
        calls: the numbers of the calls at which it fails, from 1; None means all.
    """

    def __init__(
        self, device: jax.Device, path: str | None, calls: Iterable[int] | None = None
    ) -> None:
        self.device, self.path, self.count = device, path, 0
        self.calls = None if calls is None else set(calls)

    def wrap(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the step as it runs on a machine with this device."""

        def run(state: Any, batch: Any, *rest: Any) -> Any:
            self.count += 1
            if self.calls is not None and self.count not in self.calls:
                return step(state, batch, *rest)
            if self.path is None:
                return step(state, jax.tree.map(lambda x: flip(x, self.device), batch), *rest)
            state, report = step(state, batch, *rest)
            params = params_of(state)
            params[self.path] = flip(params[self.path], self.device)
            return state, report

        return run


def params_of(state: Any) -> dict[str, jax.Array]:
    params: dict[str, jax.Array] = state["params"] if isinstance(state, dict) else state.params
    return params
