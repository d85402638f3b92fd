"""Pieces of documents: what a row is made of.

P pieces, N documents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.data.store import TokenSplit


@dataclass(frozen=True)
class Pieces:
    """The pieces of documents in some rows, row by row.

    Attributes:
        rows_P: the index of each piece's row among the rows that were asked for; it never falls.
        starts_P: the offset in the split of a piece's first token.
        lengths_P: the number of tokens. A piece is of one document, and has at least one.
        positions_P: the position in the row of a piece's first token.
    """

    rows_P: NDArray[np.int64]
    starts_P: NDArray[np.int64]
    lengths_P: NDArray[np.int64]
    positions_P: NDArray[np.int64]

    def documents(self, split: TokenSplit) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the document of each piece, and the offset in it of the piece's first token."""
        documents_P = np.searchsorted(split.starts, self.starts_P, side="right") - 1
        return documents_P, self.starts_P - split.starts[documents_P]


def document_lengths(split: TokenSplit) -> NDArray[np.int64]:
    """Returns the number of tokens of each document, with its end of text."""
    return np.diff(split.starts, append=len(split.tokens))


def ends_of(documents_P: NDArray[np.int64], split: TokenSplit) -> NDArray[np.int64]:
    """Returns the offset at which some documents end."""
    following_P = split.starts[np.minimum(documents_P + 1, len(split.starts) - 1)]
    return np.where(documents_P + 1 < len(split.starts), following_P, len(split.tokens))


def count_up(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns 0, 1, ..., count - 1 for each count, one after the other."""
    firsts = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) - np.repeat(firsts, counts)
