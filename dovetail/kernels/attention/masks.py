"""Masks: which keys a query may see, as small objects that a kernel can question.

A mask speaks of positions within one segment; that tokens see their own segment alone is the
kernel's business. Masks are hashable and hold no arrays, so they are static under `jax.jit`:

    Causal() | Prefix(64)                           # the first 64 tokens also see each other
    SlidingWindow(1024) | (Causal() & Prefix(4))    # a window, and four tokens never forgotten
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError


class Band(NamedTuple):
    """How many positions back and ahead of its own a query sees; None means no limit."""

    back: int | None
    ahead: int | None


class Mask(ABC):
    """Which keys a query may see. To the questions, False and None are always safe answers."""

    @abstractmethod
    def allowed(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Returns True where the query may see the key; the arguments broadcast together."""

    @property
    def causal(self) -> bool:
        """Whether no query sees a key at a later position than its own."""
        return False

    @property
    def reach(self) -> int | None:
        """How many positions a query sees at most, counted back from its own, itself included.

        A key `reach` or more positions back is never seen. None means no limit.
        """
        return None

    @property
    def band(self) -> Band | None:
        """The mask as a band of distances, if that is all it is: what most kernels know."""
        return None

    def __and__(self, other: Mask) -> Mask:
        """Allows what both allow."""
        return Both(self, other)

    def __or__(self, other: Mask) -> Mask:
        """Allows what either allows."""
        return Either(self, other)


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key."""

    def allowed(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Allows all."""
        return jnp.ones(jnp.broadcast_shapes(query_positions.shape, key_positions.shape), bool)

    @property
    def band(self) -> Band | None:
        """No limit."""
        return Band(None, None)


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees its own position and all before it."""

    def allowed(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Allows the present and the past."""
        return key_positions <= query_positions

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
    """A query sees the last `window` positions, its own included, and none after it."""

    window: int

    def __post_init__(self) -> None:
        """Refuses a window that holds nothing."""
        if self.window < 1:
            raise ConfigError(
                f"SlidingWindow: expected a window of 1 or more, got {self.window}. "
                "A window of 1 means that each token sees itself alone."
            )

    def allowed(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Allows the present and the near past."""
        back = query_positions - key_positions
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
    """Every query sees the first `length` positions, also those after its own."""

    length: int

    def __post_init__(self) -> None:
        """Refuses a length that means nothing."""
        if self.length < 0:
            raise ConfigError(f"Prefix: expected a length of 0 or more, got {self.length}.")

    def allowed(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Allows the prefix."""
        shape = jnp.broadcast_shapes(query_positions.shape, key_positions.shape)
        return jnp.broadcast_to(key_positions < self.length, shape)


@dataclass(frozen=True)
class Both(Mask):
    """Allows what two masks both allow; written `first & second`."""

    first: Mask
    second: Mask

    def allowed(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Allows the intersection."""
        return self.first.allowed(query_positions, key_positions) & self.second.allowed(
            query_positions, key_positions
        )

    @property
    def causal(self) -> bool:
        """One causal mask is enough."""
        return self.first.causal or self.second.causal

    @property
    def reach(self) -> int | None:
        """The shorter one."""
        reaches = [one.reach for one in (self.first, self.second) if one.reach is not None]
        return min(reaches, default=None)

    @property
    def band(self) -> Band | None:
        """What is in both bands."""
        one, other = self.first.band, self.second.band
        if one is None or other is None:
            return None
        return Band(_smaller(one.back, other.back), _smaller(one.ahead, other.ahead))


@dataclass(frozen=True)
class Either(Mask):
    """Allows what one of two masks allows; written `first | second`."""

    first: Mask
    second: Mask

    def allowed(self, query_positions: jax.Array, key_positions: jax.Array) -> jax.Array:
        """Allows the union."""
        return self.first.allowed(query_positions, key_positions) | self.second.allowed(
            query_positions, key_positions
        )

    @property
    def causal(self) -> bool:
        """Both masks must be."""
        return self.first.causal and self.second.causal

    @property
    def reach(self) -> int | None:
        """The longer one, where both have one."""
        if self.first.reach is None or self.second.reach is None:
            return None
        return max(self.first.reach, self.second.reach)


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
