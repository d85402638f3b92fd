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
        segments_BS = places.segments_BS
        real_BS = segments_BS > 0
        # The index of the last token up to each place, padding passed over; -1 where there is none.
        index_BS = jnp.where(real_BS, jnp.arange(segments_BS.shape[1]), -1)
        latest_BS = jax.lax.cummax(index_BS, axis=1)
        before_BS = jnp.pad(latest_BS, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        previous_BS = jnp.take_along_axis(segments_BS, jnp.maximum(before_BS, 0), axis=1)
        is_other_BS = (before_BS >= 0) & (previous_BS != segments_BS)
        return cls(real_BS, real_BS & (is_other_BS | (places.positions_BS == 0)))
