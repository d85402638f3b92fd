"""What generation requires of a model, a tokenizer and a detokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from numpy.typing import NDArray

from dovetail.layers import TokenContext

# Shape letters in this subpackage: B batch (rows), P padded prompt, S sequence, V vocabulary,
# N stop tokens, C tokens of a chunk, K candidates of a sampler.

TokenIds = Sequence[int] | NDArray[np.integer[Any]]
Prompt = TokenIds | str


@runtime_checkable
class NextTokenModel(Protocol):
    """A language model that predicts the next token."""

    vocab_size: int

    def logits(self, tokens_BS: jax.Array, context: TokenContext, last_B: jax.Array) -> jax.Array:
        """Returns the logits [B, V] of the token after index `last_B` of each row."""
        ...


@runtime_checkable
class TokenizerLike(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> Any:
        """Returns the token ids of a text: a sequence or an array of integers."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Returns the text of token ids."""
        ...


@runtime_checkable
class Detokenizer(Protocol):
    """Decodes a stream of token ids into complete characters."""

    def push(self, ids: Iterable[int]) -> str:
        """Adds ids and returns the text that they complete."""
        ...

    def finish(self) -> str:
        """Returns the rest of the text. Nothing may be pushed afterwards."""
        ...
