"""What layers promise each other. A parent types its children by these, never by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax

from dovetail.config import Config

# Shape letters, here and in every file of this room:
# B batch, S sequence (queries), T sequence (keys), E embed, H heads, K key-value heads, D head
# width, F feed-forward width, V vocabulary.


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Places:
    """Where each token stands: its position in its segment, and which segment (0 is padding)."""

    positions_BS: jax.Array
    segments_BS: jax.Array


class TokenMap(Protocol):
    """Maps each token on its own: a linear map, a norm, a feed-forward."""

    def __call__(self, x: jax.Array, /) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        ...


@runtime_checkable
class DecodesOtherwise(Protocol):
    """A config of a part whose output depends, by design, on tokens that decoding does not have.

    Such a part (a dispatch that drops what exceeds a capacity) names the form that decodes, with
    the same parameters; whoever makes a model decode swaps it in.
    """

    def for_decoding(self) -> Config[Any]:
        """Returns the config that stands in its place when tokens come one by one."""
        ...


class SequenceMixer(Protocol):
    """Lets tokens see each other: attention and its kin."""

    def __call__(self, x_BSE: jax.Array, places: Places, /) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        ...


class Layer(Protocol):
    """One layer of a stack."""

    def __call__(self, x_BSE: jax.Array, places: Places, /) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        ...


class PositionEncoding(Protocol):
    """Tells queries and keys where they stand."""

    def __call__(
        self, query_BSHD: jax.Array, key_BSKD: jax.Array, positions_BS: jax.Array, /
    ) -> tuple[jax.Array, jax.Array]:
        """Returns queries and keys that know their positions."""
        ...


class Residual(Protocol):
    """Joins a branch to the main stream, with norms placed before, after or both."""

    def before(self, x_BSE: jax.Array, /) -> jax.Array:
        """Returns what the branch reads."""
        ...

    def after(self, x_BSE: jax.Array, branch_BSE: jax.Array, /) -> jax.Array:
        """Returns the stream with the branch joined to it."""
        ...


class Vocabulary(Protocol):
    """A table of one vector a token, for reading tokens in and for scoring them at the end."""

    weight: jax.Array

    def __call__(self, tokens: jax.Array, /) -> jax.Array:
        """Looks tokens up."""
        ...

    def scores(self, x: jax.Array, /) -> jax.Array:
        """Returns a score for each token of the vocabulary (logits)."""
        ...
