"""What layers promise each other. A parent types its children by these, never by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from numpy.typing import NDArray

from dovetail.config import Config

Array = NDArray[Any]

# Shape letters, here and in every file of this room:
# B batch, S sequence (queries), T sequence (keys), E embed, H heads, K key-value heads, D head
# width, F feed-forward width, V vocabulary.


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Places:
    """Where each token stands: its position in its segment, and which segment (0 is padding)."""

    positions_BS: jax.Array
    segments_BS: jax.Array


class Exact:
    """A part whose own linear maps stay as they are: no adapters, no low precision.

    Such a part decides something (which experts a token goes to) that small errors would change.
    """


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


@runtime_checkable
class Forgetful(Protocol):
    """A config of a memory that keeps nothing, which is what training uses.

    A part that mixes tokens along the sequence has a child of this kind. It names what remembers
    in its place, so that whoever makes a model decode knows no kind of memory.
    """

    def remembering(self, length: int) -> Config[Any]:
        """Returns the memory that decodes sequences of up to `length` tokens."""
        ...


@runtime_checkable
class Mergeable(Protocol):
    """A wrapper whose own parameters can be computed into those of what it wraps.

    So other programs, which know no such wrapper, get a model that computes the same.
    """

    def merged(self, name: str, value: Array, own: Mapping[str, Array], /) -> Array:
        """Returns a parameter of the wrapped part, with the wrapper's own parameters taken in.

        Args:
            name: its path from the wrapper on, such as "weight".
            value: one layer's array.
            own: the wrapper's own parameters by name, each one layer's array.
        """
        ...


@runtime_checkable
class NormsOutput(Protocol):
    """A config of a linear map that normalises its result, and knows the map without the norm."""

    def without_norm(self) -> Config[Any]:
        """Returns the map alone, for a place where such a norm makes no sense."""
        ...


class LowRank(NamedTuple):
    """What is added to a matrix [in, out]: `scale` times [in, rank] @ [rank, out]."""

    down: Array
    up: Array
    scale: float


@runtime_checkable
class AddsLowRank(Protocol):
    """A mergeable wrapper that adds a product of two small matrices to the wrapped weight."""

    def low_rank(self, own: Mapping[str, Array], /) -> LowRank:
        """Returns what is added, given the wrapper's own parameters of one layer."""
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
