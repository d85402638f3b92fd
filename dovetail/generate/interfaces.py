"""What generation asks of a model, of a tokenizer and of a decoder of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from numpy.typing import NDArray

from dovetail.layers import Places

# Shape letters in this room: B rows of the batch, P prompt (padded), V vocabulary, N stop tokens,
# C tokens of a chunk, K candidates of a sampler.

TokenIds = Sequence[int] | NDArray[np.integer[Any]]
Prompt = TokenIds | str


@runtime_checkable
class NextTokenModel(Protocol):
    """A language model that scores what follows."""

    vocab_size: int

    def logits(self, tokens_BS: jax.Array, places: Places, last_B: jax.Array) -> jax.Array:
        """Returns the scores [B, V] of the token that follows index `last_B` of each row."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> Any:
        """Returns the ids of a text: a sequence or an array of integers."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Returns the text of some ids."""
        ...


@runtime_checkable
class TextDecoder(Protocol):
    """Turns ids into text as they come, in whole characters."""

    def push(self, ids: Iterable[int]) -> str:
        """Takes further ids; returns the text that is complete by now."""
        ...

    def finish(self) -> str:
        """Returns the rest of the text; nothing is pushed after it."""
        ...
