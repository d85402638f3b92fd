"""Interfaces of layers. A parent types its children by these, never by class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from numpy.typing import NDArray

from dovetail.config import Config
from dovetail.layers.context import TokenContext

Array = NDArray[Any]

# Shape letters of all layers: B batch, S query sequence, T key-value sequence, E embed, H heads,
# K key-value heads, D head dim, F feed-forward width, V vocabulary.


class PrecisionSensitive:
    """A module whose linear maps are neither quantized nor adapted.

    Small errors there change discrete decisions (a router), or accumulate over tokens (a decay).
    """


class TokenMap(Protocol):
    """Maps each token independently: a linear map, a norm, a feed-forward layer."""

    def __call__(self, x: jax.Array, /) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        ...


@runtime_checkable
class HasDecodingForm(Protocol):
    """A config of a component that cannot decode, because its output depends on later tokens.

    A dispatch with a capacity is one: which tokens it drops depends on the whole row. It names the
    component with the same parameters that replaces it in decoding.
    """

    def for_decoding(self) -> Config[Any]:
        """Returns the config that replaces this one in decoding."""
        ...


@runtime_checkable
class TrainingCache(Protocol):
    """A config of a cache that stores nothing, which is what training uses.

    Every sequence mixer has such a child. It names the cache that replaces it in decoding, so the
    generator need not know the kinds of caches.
    """

    def decoding_cache(self, length: int) -> Config[Any]:
        """Returns the config of a cache for sequences of up to `length` tokens."""
        ...


@runtime_checkable
class Mergeable(Protocol):
    """A wrapper whose parameters can be merged into those of the layer it wraps.

    Export merges them, so that programs without the wrapper compute the same.
    """

    def merged(self, name: str, value: Array, own: Mapping[str, Array], /) -> Array:
        """Returns a parameter of the wrapped layer with the wrapper's own parameters merged in.

        Args:
            name: its path relative to the wrapper, such as "weight".
            value: its value in one layer.
            own: the wrapper's own parameters in that layer, by name.
        """
        ...


@runtime_checkable
class HasOutputNorm(Protocol):
    """A config of a linear map with a norm on its output (QK-norm)."""

    def without_norm(self) -> Config[Any]:
        """Returns the linear map without the norm."""
        ...


class LowRankUpdate(NamedTuple):
    """An update of a weight [in, out]: `scale` times [in, rank] @ [rank, out]."""

    down: Array
    up: Array
    scale: float


@runtime_checkable
class HasLowRankUpdate(Protocol):
    """A mergeable wrapper that adds a low-rank update to the wrapped weight (LoRA)."""

    def low_rank_update(self, own: Mapping[str, Array], /) -> LowRankUpdate:
        """Returns the update, given the wrapper's own parameters in one layer."""
        ...


class SequenceMixer(Protocol):
    """Mixes tokens along the sequence: attention, or a recurrent layer."""

    def __call__(self, x_BSE: jax.Array, context: TokenContext, /) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        ...


class Layer(Protocol):
    """One layer of a stack.

    `x` is what goes from layer to layer: usually the residual stream [B, S, E], but it may be any
    pytree, such as several residual streams, or a residual stream with the keys and values that
    later layers share. In a stack, a layer returns the structure and the shapes that it is given.
    """

    def __call__(self, x: Any, context: TokenContext, /) -> Any:
        """Maps [B, S, E] to [B, S, E], or a pytree to one like it."""
        ...


class PositionEncoding(Protocol):
    """Encodes positions into queries and keys.

    Positions along several axes, as in images, are a named input of the context.
    """

    def __call__(
        self, q_BSHD: jax.Array, k_BSKD: jax.Array, context: TokenContext, /
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the encoded queries and keys."""
        ...


class Residual(Protocol):
    """A residual connection around a sublayer: x -> after(x, sublayer(before(x))).

    `x` is the residual stream [B, S, E], or several: any pytree.
    """

    def before(self, x: Any, /) -> jax.Array:
        """Returns the sublayer's input [B, S, E], given the residual stream."""
        ...

    def after(self, x: Any, output_BSE: jax.Array, /) -> Any:
        """Returns the residual stream with the sublayer's output added."""
        ...


class Vocabulary(Protocol):
    """A token table, for the embedding and for the output head."""

    weight: jax.Array

    def __call__(self, tokens: jax.Array, /) -> jax.Array:
        """Embeds tokens."""
        ...

    def logits(self, x: jax.Array, /) -> jax.Array:
        """Returns the logits over the vocabulary."""
        ...
