"""Ring layouts: which tokens of the sequence each device has, and which pairs it computes per hop.

At hop t a device holds the keys of the device t steps before it in the ring. A pair is a range of
its own queries and a range of those keys, of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Mask

AxisNames = tuple[str, ...]


class ChunkPair(NamedTuple):
    """A range of a device's queries, and one of the keys that it holds, of equal length."""

    q_start: jax.Array | int
    kv_start: jax.Array | int
    length: int


@runtime_checkable  # the tests check annotations at every call
class RingLayout(Protocol):
    """Which tokens a device has, and what it computes."""

    @property
    def axes(self) -> AxisNames:
        """The mesh axes of the ring."""
        ...

    @property
    def devices(self) -> int:
        """The number of devices."""
        ...

    @property
    def length(self) -> int:
        """The tokens of a device."""
        ...

    @property
    def chunk(self) -> int:
        """The tokens of a range: contiguous in the sequence."""
        ...

    @property
    def hops(self) -> int:
        """How often keys are sent on."""
        ...

    def arrange(self, array: jax.Array, axis: int) -> jax.Array:
        """Brings a device's shard of a sequence from its natural order into this layout."""
        ...

    def restore(self, array: jax.Array, axis: int) -> jax.Array:
        """Undoes `arrange`."""
        ...

    def index(self, device: jax.Array) -> jax.Array:
        """Returns the indices of a device's tokens in the global sequence."""
        ...

    def pairs(self, device: jax.Array, owner: jax.Array | None) -> Sequence[ChunkPair]:
        """Returns what a device computes with the keys of their owner (None: with its own)."""
        ...


@dataclass(frozen=True)
class ContiguousLayout:
    """Device i has shard i. Work is balanced for masks that are the same everywhere."""

    axes: AxisNames
    devices: int
    length: int
    reach: int | None

    @property
    def chunk(self) -> int:
        """All tokens of a device."""
        return self.length

    @property
    def hops(self) -> int:
        """One for each other device, or as many as a window reaches back."""
        others = self.devices - 1
        return others if self.reach is None else min(others, -(-(self.reach - 1) // self.length))

    def arrange(self, array: jax.Array, axis: int) -> jax.Array:
        """Returns the array."""
        return array

    def restore(self, array: jax.Array, axis: int) -> jax.Array:
        """Returns the array."""
        return array

    def index(self, device: jax.Array) -> jax.Array:
        """Returns the indices of the device's shard."""
        return device * self.length + jnp.arange(self.length)

    def pairs(self, device: jax.Array, owner: jax.Array | None) -> Sequence[ChunkPair]:
        """Returns all queries with all keys."""
        return (ChunkPair(0, 0, self.length),)


@dataclass(frozen=True)
class ZigzagLayout:
    """Device i of n has chunks i and 2n - 1 - i of 2n, which balances causal work.

    In natural order the last device would attend to all keys and the first only to its own, and the
    others would wait. Here every device computes two pairs of chunks at each hop. Its late chunk
    attends to the early chunk of any device. If the keys come from an earlier device, its early
    chunk also attends to their early chunk. Otherwise its late chunk also attends to their late
    chunk.
    """

    axes: AxisNames
    devices: int
    length: int

    @property
    def chunk(self) -> int:
        """Half of a device's tokens."""
        return self.length // 2

    @property
    def hops(self) -> int:
        """One for each other device."""
        return self.devices - 1

    def arrange(self, array: jax.Array, axis: int) -> jax.Array:
        """Sends both halves to the devices that own them in the layout."""
        low, high = jnp.split(array, 2, axis)
        evens, odds = (self._routes(parity) for parity in (0, 1))
        even, odd = self._permute(low, evens), self._permute(high, odds)
        # The early chunk goes first: on every second device that is the even one.
        is_even = jax.lax.axis_index(self.axes) % 2 == 0
        low, high = jnp.where(is_even, even, odd), jnp.where(is_even, odd, even)
        return jnp.concatenate([low, high], axis)

    def restore(self, array: jax.Array, axis: int) -> jax.Array:
        """Sends both chunks back."""
        low, high = jnp.split(array, 2, axis)
        is_even = jax.lax.axis_index(self.axes) % 2 == 0
        even, odd = jnp.where(is_even, low, high), jnp.where(is_even, high, low)
        back = [[(to, source) for source, to in self._routes(parity)] for parity in (0, 1)]
        return jnp.concatenate([self._permute(even, back[0]), self._permute(odd, back[1])], axis)

    def index(self, device: jax.Array) -> jax.Array:
        """Returns the indices of both chunks."""
        starts = jnp.stack([device, 2 * self.devices - 1 - device]) * self.chunk
        return (starts[:, None] + jnp.arange(self.chunk)).reshape(-1)

    def pairs(self, device: jax.Array, owner: jax.Array | None) -> Sequence[ChunkPair]:
        """Returns two pairs of chunks; three with its own keys, two of them half masked."""
        chunk = self.chunk
        always = ChunkPair(chunk, 0, chunk)
        if owner is None:
            return (ChunkPair(0, 0, chunk), always, ChunkPair(chunk, chunk, chunk))
        start = jnp.where(owner < device, 0, chunk)
        return (always, ChunkPair(start, start, chunk))

    def _routes(self, parity: int) -> list[tuple[int, int]]:
        """Returns (source, destination) of the chunks of even or odd index."""
        chunks = [2 * device + parity for device in range(self.devices)]
        last = 2 * self.devices - 1
        return [(chunk // 2, min(chunk, last - chunk)) for chunk in chunks]

    def _permute(self, array: jax.Array, routes: list[tuple[int, int]]) -> jax.Array:
        return jax.lax.ppermute(array, self.axes, routes)


def ring_layout(mask: Mask, axes: AxisNames, devices: int, length: int) -> RingLayout:
    """Returns the layout that balances the work of a mask, where there is one."""
    if mask.causal and mask.reach is None and length % 2 == 0:
        return ZigzagLayout(axes, devices, length)
    return ContiguousLayout(axes, devices, length, mask.reach if mask.causal else None)


def rotate(layout: RingLayout, arrays: Any, shift: int = 1) -> Any:
    """Sends arrays `shift` devices further around the ring (ppermute)."""
    devices = range(layout.devices)
    routes = [(device, (device + shift) % layout.devices) for device in devices]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, layout.axes, routes), arrays)
