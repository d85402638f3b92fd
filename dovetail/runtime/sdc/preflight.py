"""The pre-flight check: known products and collectives on all devices before the first step.

Every device multiplies the same two matrices of small integers, so the product is exact in any
order and any precision of matmul. Over every mesh axis, every device sends its own numbers by psum,
all-gather and collective-permute. The host compares, because a faulty device may also compare
wrongly.
"""

from __future__ import annotations

import functools
import socket
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dovetail.config import Component, ConfigError
from dovetail.runtime.agreement import Agreement
from dovetail.runtime.faults import CorruptResult
from dovetail.runtime.sdc.repeat_steps import device_names

_SIZE = 256
_LANES = 8
_MAX_FACTOR = 8
_DTYPES = (jnp.float32, jnp.bfloat16)

Pairs = list[tuple[int, int]]
"""Receivers and senders of wrong numbers, as positions of the mesh."""


class SkipPreflight(Component):
    """Checks nothing before the first step."""

    class Config(Component.Config["SkipPreflight"]):
        """Has no fields."""

    def check(self, mesh: Mesh, agreement: Agreement) -> CorruptResult | None:
        """Returns None."""
        return None


class Preflight(Component):
    """Checks every device by a known product, and every mesh axis by known collectives."""

    class Config(Component.Config["Preflight"]):
        """How long the processes of a run wait for each other."""

        deadline_seconds: int = 600

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.deadline_seconds < 1:
            got = config.deadline_seconds
            raise ConfigError(f"preflight.deadline_seconds: expected 1 or more, got {got}.")
        self._seconds = config.deadline_seconds

    def check(self, mesh: Mesh, agreement: Agreement) -> CorruptResult | None:
        """Returns a sentence about a faulty device or link, or None. All processes call this."""
        products, *received = _program(mesh)(*_inputs(mesh))
        wrong = _wrong_products(products)
        pairs = [
            pair
            for axis, numbers in zip(_axes(mesh), received, strict=True)
            for pair in _wrong_pairs(mesh, axis, numbers)
        ]
        mine = (wrong, pairs, socket.gethostname())
        answers = agreement.gather("pre-flight check", mine, self._seconds)
        names = device_names(mesh, [host for _, _, host in answers])
        all_wrong = sorted({position for each, _, _ in answers for position in each})
        if all_wrong:
            devices = tuple(names[i] for i in all_wrong)
            return _event(devices, f"{_listed(devices)} computed a wrong product")
        all_pairs = {(receiver, sender) for _, each, _ in answers for receiver, sender in each}
        if all_pairs:
            ends = faulty_ends(all_pairs)
            devices = tuple(names[i] for i in ends)
            if len(ends) == 1:
                return _event(devices, f"{devices[0]} sent or received wrong numbers")
            return _event(devices, f"numbers sent between {_listed(devices)} arrived wrong")
        return None


def faulty_ends(pairs: Collection[tuple[int, int]]) -> list[int]:
    """Returns the device that is an end of most wrong pairs; several if they are tied.

    Args:
        pairs: receivers and senders of wrong numbers. A device that sends wrong numbers also
            receives wrong numbers from itself.
    """
    counts = Counter(device for pair in pairs for device in set(pair))
    most = max(counts.values())
    return sorted(device for device, count in counts.items() if count == most)


def _event(devices: tuple[str, ...], what: str) -> CorruptResult:
    message = f"Pre-flight check: {what}. Replace the hardware, or leave it out of the mesh."
    return CorruptResult(0, message, devices, persists=True, verified=0)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _axes(mesh: Mesh) -> list[str]:
    return [axis for axis, size in mesh.shape.items() if size > 1]


@functools.cache
def _factors() -> tuple[np.ndarray, np.ndarray]:
    """Returns two matrices of small integers, whose product is exact."""
    random = np.random.default_rng(0)
    shape = (_SIZE, _SIZE)
    a, b = (random.integers(-_MAX_FACTOR, _MAX_FACTOR + 1, shape) for _ in range(2))
    return a, b


def _numbers(positions: Any) -> np.ndarray:
    """Returns the numbers that the devices at some positions send; no two send the same."""
    return np.add.outer(np.asarray(positions) * _LANES, np.arange(_LANES) + 1).astype(np.float32)


def _inputs(mesh: Mesh) -> list[jax.Array]:
    """Returns the arguments of the program, because the compiler would fold constants."""
    sharded = PartitionSpec(mesh.axis_names)
    a, b = (factor.astype(np.float32) for factor in _factors())
    values = [(a, PartitionSpec()), (b, PartitionSpec()), (_numbers(range(mesh.size)), sharded)]
    return [
        jax.make_array_from_callback(
            value.shape, NamedSharding(mesh, spec), functools.partial(np.ndarray.__getitem__, value)
        )
        for value, spec in values
    ]


@functools.lru_cache(maxsize=4)
def _program(mesh: Mesh) -> Callable[..., Sequence[jax.Array]]:
    """Returns the program: each device's product, and the numbers it received over each axis."""

    def on_each(a: jax.Array, b: jax.Array, numbers: jax.Array) -> tuple[jax.Array, ...]:
        products = [
            jnp.matmul(a.astype(dtype), b.astype(dtype), preferred_element_type=jnp.float32)
            for dtype in _DTYPES
        ]
        received = [_received(numbers[0], axis, mesh.shape[axis]) for axis in _axes(mesh)]
        return tuple(result[None] for result in (jnp.stack(products), *received))

    sharded = PartitionSpec(mesh.axis_names)
    mapped = jax.shard_map(
        on_each,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(), sharded),
        out_specs=(sharded,) * (1 + len(_axes(mesh))),
        check_vma=False,
    )
    program: Callable[..., Sequence[jax.Array]] = jax.jit(mapped)
    return program


def _received(numbers: jax.Array, axis: str, size: int) -> jax.Array:
    """Sends numbers along an axis: to all by psum and all-gather, to the next by a permutation."""
    alone = jnp.zeros((size, _LANES)).at[jax.lax.axis_index(axis)].set(numbers)
    ring = [(i, (i + 1) % size) for i in range(size)]
    results = [
        jax.lax.psum(alone, axis),
        jax.lax.all_gather(numbers, axis),
        jax.lax.ppermute(numbers, axis, ring)[None],
    ]
    return jnp.concatenate(results)


def _wrong_products(products: jax.Array) -> list[int]:
    """Returns the positions of this process's devices whose product is wrong."""
    a, b = _factors()
    return [
        position
        for position, found in _by_position(products).items()
        if not np.array_equal(found, np.broadcast_to(a @ b, found.shape))
    ]


def _wrong_pairs(mesh: Mesh, axis: str, received: jax.Array) -> Pairs:
    """Returns the receivers and senders of wrong numbers; the receivers are this process's."""
    positions = np.arange(mesh.size).reshape(mesh.devices.shape)
    lines = np.moveaxis(positions, mesh.axis_names.index(axis), -1).reshape(-1, mesh.shape[axis])
    pairs = []
    for receiver, found in _by_position(received).items():
        line = next(line for line in lines if receiver in line)
        before = np.roll(line, 1)[line == receiver]
        senders = np.concatenate([line, line, before])
        is_wrong = (found != _numbers(senders)).any(axis=1)
        pairs += [(receiver, int(sender)) for sender in senders[is_wrong]]
    return pairs


def _by_position(array: jax.Array) -> dict[int, np.ndarray]:
    """Returns the values on each device of this process, by position."""
    shards = array.addressable_shards
    return {shard.index[0].start or 0: np.asarray(shard.data)[0] for shard in shards}
