"""What a recurrence keeps of earlier calls, and where it begins anew. Training keeps nothing."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import Config as AnyConfig
from dovetail.layers.interfaces import Places
from dovetail.module import Module


class StateMemory(Protocol):
    """Carries named arrays of a fixed shape from one call to the next."""

    def read(self, name: str, first: jax.Array, /) -> jax.Array:
        """Returns what the call before left, or `first` where there was none."""
        ...

    def write(self, name: str, value: jax.Array, /) -> None:
        """Leaves an array to the next call."""
        ...


class NoState(Module):
    """Keeps nothing: every call begins anew."""

    class Config(Module.Config["NoState"]):
        """Nothing to set."""

        def remembering(self, length: int) -> AnyConfig[StateMemory]:
            """Returns the memory that decodes; its size does not depend on the length."""
            return KeptState.Config()

    def read(self, name: str, first: jax.Array) -> jax.Array:
        """Returns what a sequence begins with."""
        return first

    def write(self, name: str, value: jax.Array) -> None:
        """Drops it."""


class KeptState(Module):
    """Keeps the arrays in the cache, one of each a sequence."""

    def read(self, name: str, first: jax.Array) -> jax.Array:
        """Returns what was kept."""
        kept = self.read_cache(name)
        return first if kept is None else kept

    def write(self, name: str, value: jax.Array) -> None:
        """Keeps it."""
        self.write_cache(name, value)


class Course(NamedTuple):
    """How a recurrence runs through the tokens of a call.

    Attributes:
        real_BS: where there is a token; at padding, the state stays as it is.
        starts_BS: where a sequence begins, so that the state before it is forgotten.
    """

    real_BS: jax.Array
    starts_BS: jax.Array

    @classmethod
    def of(cls, places: Places) -> Course:
        """A sequence begins at position 0, and where a segment differs from the one before it.

        What a call begins with goes on from the call before it, unless it stands at position 0.
        """
        segments_BS = jnp.maximum(places.segments_BS, 0)
        real_BS = segments_BS > 0
        # The segment of the last token up to each place, padding passed over; 0 if there is none.
        latest_BS = jax.lax.associative_scan(_last, segments_BS, axis=1)
        before_BS = jnp.pad(latest_BS, ((0, 0), (1, 0)))[:, :-1]
        is_other_BS = (before_BS > 0) & (before_BS != segments_BS)
        return cls(real_BS, real_BS & (is_other_BS | (places.positions_BS == 0)))


def _last(earlier: jax.Array, later: jax.Array) -> jax.Array:
    return jnp.where(later > 0, later, earlier)
