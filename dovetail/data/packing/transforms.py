"""Transformations of the tokens of documents, after they are packed.

A transformation is a pure function of its seed and of the document, so that a batch stays one of
the seed and the step. It is the same in every epoch, and for the held-out split: an evaluation
measures what training minimizes. It keeps the length of each piece.

P pieces, N tokens of all pieces.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.config import REQUIRED, Component, ConfigError
from dovetail.data.order import draws
from dovetail.data.packing.pieces import count_up

_NUM_ADDED = 4  # three sentinels, and an end of text


@dataclass(frozen=True)
class PieceTokens:
    """The tokens of some pieces of documents, piece by piece.

    Attributes:
        documents_P: the index of each piece's document in its split.
        offsets_P: the offset in the document of each piece's first token.
        lengths_P: the number of tokens of each piece.
        positions_N: the position of each token in its piece.
        tokens_N: the token ids.
        targets_N: the token id that each token predicts.
        weights_N: the loss weight of each target.
        end_of_text: the id that ends a document.
        token_bytes: the number of bytes of each id; special and unused ids have none.
        has_own_weights: whether the data says which tokens count, as conversations do.
    """

    documents_P: NDArray[np.int64]
    offsets_P: NDArray[np.int64]
    lengths_P: NDArray[np.int64]
    positions_N: NDArray[np.int64]
    tokens_N: NDArray[np.integer[Any]]
    targets_N: NDArray[np.integer[Any]]
    weights_N: NDArray[np.float32]
    end_of_text: int
    token_bytes: NDArray[np.int32]
    has_own_weights: bool = False


class TokenTransform(Protocol):
    """Changes tokens, targets and loss weights of pieces of documents."""

    def __call__(self, pieces: PieceTokens) -> PieceTokens:
        """Returns the changed pieces, each as long as before."""
        ...


class PrefixLM(Component):
    """Takes the loss from the targets among the first tokens of each document in a row.

    It is the data's half of a prefix language model. The other half is a mask that lets all tokens
    attend to the same prefix: `Causal() | Prefix(length)`.
    """

    class Config(Component.Config["PrefixLM"]):
        length: int = REQUIRED
        """The number of tokens of the prefix."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.length < 1:
            raise ConfigError(
                f"{config.locate('length')}: expected 1 or more, got {config.length}."
            )
        self._length = config.length

    def __call__(self, pieces: PieceTokens) -> PieceTokens:
        """Returns the pieces without the loss of targets in the prefix."""
        is_outside_N = pieces.positions_N + 1 >= self._length
        return dataclasses.replace(pieces, weights_N=pieces.weights_N * is_outside_N)


class FillInTheMiddle(Component):
    """Moves the middle of some documents behind their end (Bavarian et al., arXiv:2207.14255).

    A document, or its piece in a row, is cut at two random points between tokens. Its parts follow
    sentinels, in the order prefix, suffix, middle (PSM) or suffix, prefix and middle (SPM).
    Sentinels are no targets; all else has loss weight 1, so another transformation of weights comes
    after this one. The sentinels take the places of the last three tokens before the end of text. A
    piece whose document goes on in another row ends in an end of text, too. Conversations stay as
    they are: an answer belongs after its prompt.
    """

    class Config(Component.Config["FillInTheMiddle"]):
        prefix_id: int = REQUIRED
        """The id of the sentinel before the prefix; like the others, no text encodes to it."""
        suffix_id: int = REQUIRED
        middle_id: int = REQUIRED
        rate: float = 0.5
        """The fraction of documents that are changed."""
        spm_rate: float = 0.5
        """The fraction of these whose suffix comes first."""
        seed: int = 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name, rate in (("rate", config.rate), ("spm_rate", config.spm_rate)):
            if not 0.0 <= rate <= 1.0:
                raise ConfigError(f"{config.locate(name)}: expected 0 to 1, got {rate}.")
        self._sentinels = np.array([config.prefix_id, config.suffix_id, config.middle_id])
        if len(set(self._sentinels)) < 3:
            raise ConfigError(
                f"{config.locate('middle_id')}: expected three different sentinels, got "
                f"{self._sentinels.tolist()}."
            )
        self._rate, self._spm_rate, self._seed = config.rate, config.spm_rate, config.seed

    def __call__(self, pieces: PieceTokens) -> PieceTokens:
        """Returns the pieces, with some rearranged."""
        if pieces.has_own_weights:
            return pieces
        self._check(pieces)
        (chance_P,) = draws(self._seed, 1, pieces.documents_P)
        is_chosen_P = (chance_P < self._rate) & (pieces.lengths_P > _NUM_ADDED)
        chosen = np.flatnonzero(is_chosen_P)
        where_N = np.flatnonzero(np.repeat(is_chosen_P, pieces.lengths_P))
        tokens_N = pieces.tokens_N.astype(np.int64)
        tokens_N[where_N] = self._rearranged(pieces, chosen, tokens_N)

        targets_N, weights_N = pieces.targets_N.astype(np.int64), pieces.weights_N.copy()
        next_N = np.append(tokens_N[1:], pieces.end_of_text)[where_N]
        ends = np.cumsum(pieces.lengths_P[chosen]) - 1  # what follows is of another piece
        next_N[ends] = pieces.end_of_text
        targets_N[where_N], weights_N[where_N] = next_N, ~np.isin(next_N, self._sentinels)
        weights_N[where_N[ends]] = 0
        return dataclasses.replace(
            pieces, tokens_N=tokens_N, targets_N=targets_N, weights_N=weights_N
        )

    def _rearranged(
        self, pieces: PieceTokens, chosen: NDArray[np.int64], tokens_N: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns the tokens of the chosen pieces, one after the other, rearranged.

        Each has seven ranges: sentinels, the end of text, and three ranges of its own tokens.
        """
        begins = (np.cumsum(pieces.lengths_P) - pieces.lengths_P)[chosen]
        sizes = pieces.lengths_P[chosen] - _NUM_ADDED
        keys = pieces.documents_P[chosen], pieces.offsets_P[chosen]
        mode, *points = draws(self._seed, 3, *keys)
        low, high = np.sort((np.stack(points) * (sizes + 1)).astype(np.int64), axis=0)
        is_spm = mode < self._spm_rate
        zero, one = np.zeros_like(sizes), np.ones_like(sizes)
        # In SPM nothing follows the first sentinel, and the prefix is before the middle.
        first = np.where(is_spm, 0, low)
        starts = np.stack([zero, zero, zero, high, zero, first, zero], axis=1)
        lengths = np.stack([one, first, one, sizes - high, one, high - first, one], axis=1)

        prefix, suffix, middle = self._sentinels
        new = np.array([prefix, -1, suffix, -1, middle, -1, pieces.end_of_text])
        new_N = np.repeat(np.tile(new, len(chosen)), lengths.ravel())
        offsets_N = np.repeat((begins[:, None] + starts).ravel(), lengths.ravel())
        offsets_N += count_up(lengths.ravel())
        return np.where(new_N >= 0, new_N, tokens_N[offsets_N])

    def _check(self, pieces: PieceTokens) -> None:
        """Refuses sentinels that are no ids, or that text may have."""
        names = ("prefix_id", "suffix_id", "middle_id")
        for name, sentinel in zip(names, self._sentinels.tolist(), strict=True):
            where, count = self.config.locate(name), len(pieces.token_bytes)
            if not 0 <= sentinel < count:
                raise ConfigError(f"{where}: expected an id from 0 to {count - 1}, got {sentinel}.")
            if sentinel == pieces.end_of_text or pieces.token_bytes[sentinel]:
                raise ConfigError(
                    f"{where}: expected a special or unused id of the tokenizer, but text encodes "
                    f"to {sentinel}, or it is the end of text ({pieces.end_of_text}). Add special "
                    "tokens to the tokenizer."
                )
