"""Packings with an index: the pieces of all rows are arranged once, and stored.

P pieces of the split in the order of its documents, N documents, B rows, R all rows.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.config import Component, ConfigOf, T_co, identity, to_text
from dovetail.data.packing.index import PackingIndex, fingerprint, open_index
from dovetail.data.packing.interfaces import IndexPlace, PackedRows, PackingStatistics
from dovetail.data.packing.long_documents import LongDocuments, SplitLong
from dovetail.data.packing.pieces import Pieces, count_up, document_lengths
from dovetail.data.store import TokenSplit


class Arrangement(NamedTuple):
    """Which piece is where.

    Attributes:
        order_P: the pieces, row by row.
        row_starts: the place in that order of each row's first piece, then the number of pieces.
    """

    order_P: NDArray[np.integer[Any]]
    row_starts: NDArray[np.int64]


class IndexedPacking(Component):
    """Packs whole documents. A subclass arranges them; documents longer than a row are cut first.

    The index is built once for each split, sequence length and config. A subclass whose code
    arranges pieces in a new way has another `version`, so that older indexes are not used.
    """

    version = 1

    class Config(Component.Config[T_co], Generic[T_co]):
        """`long_documents` decides about documents that are longer than a row."""

        long_documents: ConfigOf[LongDocuments] = SplitLong.Config()

    def __init__(self, config: Config[Any]) -> None:
        super().__init__(config)
        self._long_documents = config.long_documents.build()

    @abstractmethod
    def arrange(self, lengths_P: NDArray[np.int32], sequence_length: int) -> Arrangement:
        """Arranges pieces, none of which is longer than a row, from their lengths alone."""
        raise NotImplementedError(f"{type(self).__name__} must implement arrange.")

    def pack(
        self, split: TokenSplit, sequence_length: int, place: IndexPlace | None = None
    ) -> PackedRows:
        """Returns the rows. Builds the index, unless it is stored already."""

        def build() -> PackingIndex:
            return self._build(split, sequence_length)

        if place is None or not len(split.starts):
            return IndexedRows(split, sequence_length, build())
        settings = f"{self.version} {sequence_length}\n{to_text(identity(self.config))}"
        name = f"{place.name}-{_short_name(self)}-{sequence_length}-{fingerprint(split, settings)}"
        index = open_index(place.folder / name, build, place.progress)
        return IndexedRows(split, sequence_length, index)

    def _build(self, split: TokenSplit, sequence_length: int) -> PackingIndex:
        lengths_N = document_lengths(split)
        kept_N = self._long_documents.kept_tokens(lengths_N, sequence_length)
        counts_N = -(-kept_N // sequence_length)
        starts_P, lengths_P = _cut(split, kept_N, counts_N, sequence_length)
        order_P, row_starts = arranged = self.arrange(lengths_P, sequence_length)
        self._check(arranged, lengths_P, sequence_length)
        statistics = PackingStatistics(
            rows=len(row_starts) - 1,
            sequence_length=sequence_length,
            documents=len(lengths_N),
            tokens=int(kept_N.sum()),
            documents_split=int(np.count_nonzero(counts_N > 1)),
            documents_dropped=int(np.count_nonzero(counts_N == 0)),
            tokens_dropped=int((lengths_N - kept_N).sum()),
        )
        return PackingIndex(starts_P[order_P], lengths_P[order_P], row_starts, statistics)

    def _check(
        self, arranged: Arrangement, lengths_P: NDArray[np.int32], sequence_length: int
    ) -> None:
        """Refuses an arrangement that loses or repeats a piece, or fills a row too much."""
        order_P, row_starts = arranged
        num_pieces = len(lengths_P)
        is_found_P = np.zeros(num_pieces, bool)
        is_found_P[order_P] = True
        begins = np.concatenate([[0], np.cumsum(lengths_P[order_P], dtype=np.int64)])
        is_rising = (np.diff(row_starts) > 0).all()
        longest = int(np.diff(begins[row_starts]).max(initial=0))
        if len(order_P) != num_pieces or not is_found_P.all():
            problem = f"expected each of {num_pieces:,} pieces once"
        elif not is_rising or (row_starts[0], row_starts[-1]) != (0, num_pieces):
            problem = f"expected rising row starts from 0 to {num_pieces:,}"
        elif longest > sequence_length:
            problem = f"expected rows of at most {sequence_length} tokens, got one of {longest}"
        else:
            return
        raise ValueError(f"{type(self).__name__}.arrange: {problem}.")


class PadEach(IndexedPacking):
    """One document a row; the rest of the row is padding."""

    def arrange(self, lengths_P: NDArray[np.int32], sequence_length: int) -> Arrangement:
        """Gives each piece a row of its own, in the order of the documents."""
        numbers = np.arange(len(lengths_P) + 1)
        return Arrangement(numbers[:-1], numbers)


class IndexedRows(PackedRows):
    """Rows that an index lists the pieces of."""

    def __init__(self, split: TokenSplit, sequence_length: int, index: PackingIndex) -> None:
        super().__init__(split, sequence_length)
        self._index = index

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self._index.row_starts) - 1

    def pieces(self, rows_B: NDArray[np.int64]) -> Pieces:
        """Returns the pieces that the index lists, one after the other from the row's start."""
        index = self._index
        existing = np.flatnonzero(rows_B >= 0)
        firsts = index.row_starts[rows_B[existing]]
        counts = index.row_starts[rows_B[existing] + 1] - firsts
        where_P = np.repeat(firsts, counts) + count_up(counts)
        lengths_P = index.lengths[where_P].astype(np.int64)
        before_P = np.cumsum(lengths_P) - lengths_P
        row_before_P = np.repeat(before_P[np.cumsum(counts) - counts], counts)
        rows_P = np.repeat(existing, counts)
        return Pieces(rows_P, index.starts[where_P], lengths_P, before_P - row_before_P)

    def statistics(self) -> PackingStatistics:
        """Returns how well the documents fill the rows, as counted when the index was built."""
        return self._index.statistics


def _cut(
    split: TokenSplit,
    kept_N: NDArray[np.int64],
    counts_N: NDArray[np.int64],
    sequence_length: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Cuts documents into full rows and a rest; returns the starts and lengths of all pieces."""
    offsets_P = count_up(counts_N) * sequence_length
    lengths_P = np.minimum(np.repeat(kept_N, counts_N) - offsets_P, sequence_length)
    return np.repeat(split.starts, counts_N) + offsets_P, lengths_P.astype(np.int32)


def _short_name(packing: IndexedPacking) -> str:
    """Returns the name of the class in lower case, with hyphens: `best-fit`."""
    letters = [f"-{c.lower()}" if c.isupper() else c for c in type(packing).__name__]
    return "".join(letters).strip("-_")
