"""Attention masks: which keys a query may attend to, as small objects that a kernel can query.

A mask is about positions within one segment; the kernel masks by segment id. Masks are hashable and
hold no arrays, so they are static under `jax.jit`:

    Causal() | Prefix(64)                           # prefix LM: the first 64 tokens are not causal
    SlidingWindow(1024) | (Causal() & Prefix(4))    # a window, and the first four tokens as sinks
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError


class Band(NamedTuple):
    """How many positions back and ahead of its own a query attends to; None means no limit."""

    back: int | None
    ahead: int | None


class Mask(ABC):
    """An attention mask: which keys a query may attend to.

    For a property, False and None are always safe.
    """

    @abstractmethod
    def allowed(self, q_positions: jax.Array, kv_positions: jax.Array) -> jax.Array:
        """Returns True where the query may attend to the key; the arguments broadcast together."""

    @property
    def causal(self) -> bool:
        """Whether no query attends to a key at a later position than its own."""
        return False

    @property
    def reach(self) -> int | None:
        """The length of the window: how many positions back a query attends to, itself included.

        No query attends to a key `reach` or more positions back. None means no limit.
        """
        return None

    @property
    def band(self) -> Band | None:
        """The mask as a band around the diagonal, if it is one: all that most kernels support."""
        return None

    def __and__(self, other: Mask) -> Mask:
        """Allows what both allow."""
        return Both(self, other)

    def __or__(self, other: Mask) -> Mask:
        """Allows what either allows."""
        return Either(self, other)


@dataclass(frozen=True)
class Full(Mask):
    """Every query attends to every key."""

    def allowed(self, q_positions: jax.Array, kv_positions: jax.Array) -> jax.Array:
        """Allows all."""
        return jnp.ones(jnp.broadcast_shapes(q_positions.shape, kv_positions.shape), bool)

    @property
    def band(self) -> Band | None:
        """No limit."""
        return Band(None, None)


@dataclass(frozen=True)
class Causal(Mask):
    """A query attends to its own position and all before it."""

    def allowed(self, q_positions: jax.Array, kv_positions: jax.Array) -> jax.Array:
        """Allows the present and the past."""
        return kv_positions <= q_positions

    @property
    def causal(self) -> bool:
        """Always."""
        return True

    @property
    def band(self) -> Band | None:
        """Nothing ahead."""
        return Band(None, 0)


@dataclass(frozen=True)
class SlidingWindow(Mask):
    """A query attends to the last `window` positions, its own included."""

    window: int

    def __post_init__(self) -> None:
        """Refuses an empty window."""
        if self.window < 1:
            raise ConfigError(
                f"SlidingWindow: expected a window of 1 or more, got {self.window}. "
                "With a window of 1, each token attends only to itself."
            )

    def allowed(self, q_positions: jax.Array, kv_positions: jax.Array) -> jax.Array:
        """Allows the present and the near past."""
        back = q_positions - kv_positions
        return (back >= 0) & (back < self.window)

    @property
    def causal(self) -> bool:
        """Always."""
        return True

    @property
    def reach(self) -> int | None:
        """The window."""
        return self.window

    @property
    def band(self) -> Band | None:
        """The window, and nothing ahead."""
        return Band(self.window - 1, 0)


@dataclass(frozen=True)
class Prefix(Mask):
    """Every query attends to the first `length` positions, also those after its own."""

    length: int

    def __post_init__(self) -> None:
        """Refuses a negative length."""
        if self.length < 0:
            raise ConfigError(f"Prefix: expected a length of 0 or more, got {self.length}.")

    def allowed(self, q_positions: jax.Array, kv_positions: jax.Array) -> jax.Array:
        """Allows the prefix."""
        shape = jnp.broadcast_shapes(q_positions.shape, kv_positions.shape)
        return jnp.broadcast_to(kv_positions < self.length, shape)


@dataclass(frozen=True)
class Both(Mask):
    """Allows what two masks both allow; written `first & second`."""

    first: Mask
    second: Mask

    def allowed(self, q_positions: jax.Array, kv_positions: jax.Array) -> jax.Array:
        """Allows the intersection."""
        return self.first.allowed(q_positions, kv_positions) & self.second.allowed(
            q_positions, kv_positions
        )

    @property
    def causal(self) -> bool:
        """True if either mask is causal."""
        return self.first.causal or self.second.causal

    @property
    def reach(self) -> int | None:
        """The shorter reach."""
        reaches = [one.reach for one in (self.first, self.second) if one.reach is not None]
        return min(reaches, default=None)

    @property
    def band(self) -> Band | None:
        """The intersection of both bands."""
        one, other = self.first.band, self.second.band
        if one is None or other is None:
            return None
        return Band(_smaller(one.back, other.back), _smaller(one.ahead, other.ahead))


@dataclass(frozen=True)
class Either(Mask):
    """Allows what either of two masks allows; written `first | second`."""

    first: Mask
    second: Mask

    def allowed(self, q_positions: jax.Array, kv_positions: jax.Array) -> jax.Array:
        """Allows the union."""
        return self.first.allowed(q_positions, kv_positions) | self.second.allowed(
            q_positions, kv_positions
        )

    @property
    def causal(self) -> bool:
        """True if both masks are causal."""
        return self.first.causal and self.second.causal

    @property
    def reach(self) -> int | None:
        """The longer reach, if both have one."""
        if self.first.reach is None or self.second.reach is None:
            return None
        return max(self.first.reach, self.second.reach)


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
