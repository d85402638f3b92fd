"""How a ring of devices shares a sequence, and which pairs each of them computes at each hop.

At hop t a device holds the keys of the device t places before it. A pair is a range of its own
queries and a range of those keys, equally long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Mask

AxisNames = tuple[str, ...]


class Pair(NamedTuple):
    """Where a range of queries begins among a device's own, and one of keys among those there."""

    query: jax.Array | int
    key: jax.Array | int
    length: int


@runtime_checkable  # the tests check annotations at every call
class RingLayout(Protocol):
    """Which tokens a device has, and what it computes."""

    @property
    def axes(self) -> AxisNames:
        """The mesh axes along which the devices lie."""
        ...

    @property
    def devices(self) -> int:
        """How many there are."""
        ...

    @property
    def length(self) -> int:
        """How many tokens each has."""
        ...

    @property
    def piece(self) -> int:
        """How many tokens in a row are a range."""
        ...

    @property
    def hops(self) -> int:
        """How often keys move on."""
        ...

    def arrange(self, array: jax.Array, axis: int) -> jax.Array:
        """Brings a device's part of a sequence, which comes in order, into this layout."""
        ...

    def restore(self, array: jax.Array, axis: int) -> jax.Array:
        """Undoes `arrange`."""
        ...

    def index(self, device: jax.Array) -> jax.Array:
        """Returns which tokens of the whole sequence a device has."""
        ...

    def pairs(self, device: jax.Array, other: jax.Array | None) -> Sequence[Pair]:
        """Returns what a device computes with the keys of another, or with its own (None)."""
        ...


@dataclass(frozen=True)
class InOrder:
    """Each device has the next part. All have equal work where a mask looks as far everywhere."""

    axes: AxisNames
    devices: int
    length: int
    reach: int | None

    @property
    def piece(self) -> int:
        """All that a device has."""
        return self.length

    @property
    def hops(self) -> int:
        """As many as there are other devices, or as a window reaches back."""
        others = self.devices - 1
        return others if self.reach is None else min(others, -(-(self.reach - 1) // self.length))

    def arrange(self, array: jax.Array, axis: int) -> jax.Array:
        """Leaves it as it is."""
        return array

    def restore(self, array: jax.Array, axis: int) -> jax.Array:
        """Leaves it as it is."""
        return array

    def index(self, device: jax.Array) -> jax.Array:
        """Returns the tokens of the device's part."""
        return device * self.length + jnp.arange(self.length)

    def pairs(self, device: jax.Array, other: jax.Array | None) -> Sequence[Pair]:
        """Returns all queries with all keys."""
        return (Pair(0, 0, self.length),)


@dataclass(frozen=True)
class Folded:
    """Device i of n has pieces i and 2n - 1 - i of 2n, so that causal work is the same for all.

    In order the last device would see all keys and the first its own alone, and the others would
    wait. Folded, every device computes two pairs of pieces at each hop: its later piece sees the
    earlier piece of any device; and its earlier piece sees that of a device before it, or else its
    later piece the later one of a device after it.
    """

    axes: AxisNames
    devices: int
    length: int

    @property
    def piece(self) -> int:
        """Half of what a device has."""
        return self.length // 2

    @property
    def hops(self) -> int:
        """As many as there are other devices."""
        return self.devices - 1

    def arrange(self, array: jax.Array, axis: int) -> jax.Array:
        """Sends both halves to where they belong."""
        low, high = jnp.split(array, 2, axis)
        evens, odds = (self._homes(parity) for parity in (0, 1))
        from_evens, from_odds = self._sent(low, evens), self._sent(high, odds)
        return self._either(from_evens, from_odds, axis)

    def restore(self, array: jax.Array, axis: int) -> jax.Array:
        """Sends both pieces back."""
        low, high = jnp.split(array, 2, axis)
        is_even = _device(self.axes) % 2 == 0
        even, odd = jnp.where(is_even, low, high), jnp.where(is_even, high, low)
        back = [[(home, start) for start, home in self._homes(parity)] for parity in (0, 1)]
        return jnp.concatenate([self._sent(even, back[0]), self._sent(odd, back[1])], axis)

    def index(self, device: jax.Array) -> jax.Array:
        """Returns the tokens of both pieces."""
        starts = jnp.stack([device, 2 * self.devices - 1 - device]) * self.piece
        return (starts[:, None] + jnp.arange(self.piece)).reshape(-1)

    def pairs(self, device: jax.Array, other: jax.Array | None) -> Sequence[Pair]:
        """Returns two pairs of pieces; three with the device's own keys, two of them halves."""
        piece = self.piece
        always = Pair(piece, 0, piece)
        if other is None:
            return (Pair(0, 0, piece), always, Pair(piece, piece, piece))
        start = jnp.where(other < device, 0, piece)
        return (always, Pair(start, start, piece))

    def _homes(self, parity: int) -> list[tuple[int, int]]:
        """Returns from where to where the pieces of even or odd number go."""
        pieces = [2 * device + parity for device in range(self.devices)]
        last = 2 * self.devices - 1
        return [(piece // 2, min(piece, last - piece)) for piece in pieces]

    def _either(self, even: jax.Array, odd: jax.Array, axis: int) -> jax.Array:
        """Puts the earlier piece first: that is the one of even number on every second device."""
        is_even = _device(self.axes) % 2 == 0
        low, high = jnp.where(is_even, even, odd), jnp.where(is_even, odd, even)
        return jnp.concatenate([low, high], axis)

    def _sent(self, array: jax.Array, routes: list[tuple[int, int]]) -> jax.Array:
        return jax.lax.ppermute(array, self.axes, routes)


def ring_layout(mask: Mask, axes: AxisNames, devices: int, length: int) -> RingLayout:
    """Returns the layout in which all devices have equal work, where there is one."""
    if mask.causal and mask.reach is None and length % 2 == 0:
        return Folded(axes, devices, length)
    return InOrder(axes, devices, length, mask.reach if mask.causal else None)


def passed_on(layout: RingLayout, arrays: Any, places: int = 1) -> Any:
    """Sends arrays to the device so many places further on the ring."""
    devices = range(layout.devices)
    routes = [(device, (device + places) % layout.devices) for device in devices]
    return jax.tree.map(lambda array: jax.lax.ppermute(array, layout.axes, routes), arrays)


def _device(axes: AxisNames) -> jax.Array:
    return jax.lax.axis_index(axes)
