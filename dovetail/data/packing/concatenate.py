"""Concatenate and split: the documents end to end, cut into rows by index arithmetic alone.

Row i starts at token i*S and predicts the next token at every position, so each token of a split is
a target once. Nothing is packed in advance: a binary search in the document starts finds the
documents of a row, so any row of any split is made directly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dovetail.config import Component
from dovetail.data.packing.interfaces import IndexPlace, PackedRows, PackingStatistics
from dovetail.data.packing.pieces import Pieces, count_up, ends_of
from dovetail.data.store import TokenSplit


class ConcatenateAndSplit(Component):
    """Concatenates documents, and splits them where a row is full: no padding but at the end."""

    def pack(
        self, split: TokenSplit, sequence_length: int, place: IndexPlace | None = None
    ) -> PackedRows:
        """Returns the rows; they need no index."""
        return ConcatenatedRows(split, sequence_length)


class ConcatenatedRows(PackedRows):
    """Rows that cut the concatenated documents at multiples of the sequence length."""

    @property
    def num_rows(self) -> int:
        """The number of rows; the last one may end in padding.

        A last token of its own makes no row: it is an end of text, and predicts nothing.
        """
        num_tokens = len(self.split.tokens)
        return -(-(num_tokens - 1) // self.sequence_length) if num_tokens > 1 else 0

    def pieces(self, rows_B: NDArray[np.int64]) -> Pieces:
        """Returns the pieces of documents between the start and the end of each row."""
        starts, length = self.split.starts, self.sequence_length
        existing = np.flatnonzero((rows_B >= 0) & (rows_B < self.num_rows))
        begins = rows_B[existing] * length
        ends = np.minimum(begins + length, len(self.split.tokens))
        firsts = np.searchsorted(starts, begins, side="right") - 1
        counts = np.searchsorted(starts, ends, side="left") - firsts
        documents_P = np.repeat(firsts, counts) + count_up(counts)
        row_begins_P = np.repeat(begins, counts)
        starts_P = np.maximum(starts[documents_P], row_begins_P)
        ends_P = np.minimum(ends_of(documents_P, self.split), np.repeat(ends, counts))
        rows_P = np.repeat(existing, counts)
        return Pieces(rows_P, starts_P, ends_P - starts_P, starts_P - row_begins_P)

    def statistics(self) -> PackingStatistics:
        """Returns how well the documents fill the rows; nothing is dropped."""
        starts, length = self.split.starts, self.sequence_length
        tokens = min(len(self.split.tokens), self.num_rows * length)
        lasts = np.append(starts[1:], tokens)[: len(starts)] - 1
        num_split = int(np.count_nonzero(starts // length < lasts // length))
        return PackingStatistics(self.num_rows, length, len(starts), tokens, num_split)
