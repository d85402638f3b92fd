"""Caches of recurrent states, and where sequences start. Training uses `NoStateCache`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import Config as AnyConfig
from dovetail.layers.context import TokenContext
from dovetail.module import Module


class StateCache(Protocol):
    """Carries named arrays of a fixed shape from one call to the next."""

    def read(self, name: str, initial: jax.Array, /) -> jax.Array:
        """Returns the cached array, or `initial` if there is none."""
        ...

    def write(self, name: str, value: jax.Array, /) -> None:
        """Caches an array for the next call."""
        ...


class NoStateCache(Module):
    """Stores nothing: every call starts from the initial state."""

    class Config(Module.Config["NoStateCache"]):
        def decoding_cache(self, length: int) -> AnyConfig[StateCache]:
            """Returns the cache for decoding; its size does not depend on the length."""
            return RecurrentStateCache.Config()

    def read(self, name: str, initial: jax.Array) -> jax.Array:
        """Returns the initial state."""
        return initial

    def write(self, name: str, value: jax.Array) -> None:
        """Does nothing."""


class RecurrentStateCache(Module):
    """Caches the recurrent state of each sequence for the next decode step."""

    def read(self, name: str, initial: jax.Array) -> jax.Array:
        """Returns the cached state."""
        cached = self.read_cache(name)
        return initial if cached is None else cached

    def write(self, name: str, value: jax.Array) -> None:
        """Caches the state."""
        self.write_cache(name, value)


class SequenceBoundaries(NamedTuple):
    """Where the sequences of a call start, and which tokens are padding.

    Attributes:
        real_BS: False at padding, which does not change the state.
        starts_BS: True at the first token of a sequence, which resets the state.
    """

    real_BS: jax.Array
    starts_BS: jax.Array

    @classmethod
    def of(cls, context: TokenContext) -> SequenceBoundaries:
        """Finds the starts: position 0, or a segment id that differs from the previous one.

        The first token of a call continues the previous call, unless it is at position 0.
        """
        segment_ids_BS = jnp.maximum(context.segment_ids_BS, 0)
        real_BS = segment_ids_BS > 0
        # The segment id of the last token so far that is not padding; 0 if there is none.
        latest_BS = jax.lax.associative_scan(_last, segment_ids_BS, axis=1)
        before_BS = jnp.pad(latest_BS, ((0, 0), (1, 0)))[:, :-1]
        is_other_BS = (before_BS > 0) & (before_BS != segment_ids_BS)
        return cls(real_BS, real_BS & (is_other_BS | (context.positions_BS == 0)))


def _last(earlier: jax.Array, later: jax.Array) -> jax.Array:
    return jnp.where(later > 0, later, earlier)
