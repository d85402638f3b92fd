"""Best-fit decreasing: whole documents, the longest first, each into the fullest row that it fits.

"Fewer Truncations Improve Language Modeling" (Ding et al., 2024, arXiv:2404.10830) packs in this
way: hardly more rows than concatenation needs, and no document is cut that fits into a row.

Pieces of one length are packed at once. The fullest row that takes one is fuller then, so it also
takes the next one, until none fits. Rows with the same content take the same number. So the work is
one operation for a range of such rows, however many pieces there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dovetail.data.packing.indexed import Arrangement, IndexedPacking


class BestFit(IndexedPacking):
    """Packs whole documents by best-fit decreasing; rows end in padding where nothing fits."""

    def arrange(self, lengths_P: NDArray[np.int32], sequence_length: int) -> Arrangement:
        """Packs the pieces; those of one length in the order of their documents."""
        # A stable sort of 16-bit numbers is a radix sort.
        key_type = np.uint16 if sequence_length < 2**16 else np.uint32
        descending_P = np.argsort((sequence_length - lengths_P).astype(key_type), kind="stable")
        counts = np.bincount(lengths_P, minlength=1)

        open_rows = _OpenRows(sequence_length)
        fills = [
            fill
            for length in np.flatnonzero(counts)[::-1].tolist()
            for fill in open_rows.fill(length, int(counts[length]))
        ]
        row_starts = np.concatenate([[0], np.cumsum(open_rows.pieces_per_row())])
        order_P = np.empty(len(lengths_P), np.int64)
        begin = 0
        for rows, each in fills:
            end = begin + rows.size * each
            firsts = row_starts[rows.first : rows.first + rows.size] + rows.pieces
            places = firsts[:, None] + np.arange(each)
            order_P[places] = descending_P[begin:end].reshape(rows.size, each)
            begin = end
        return Arrangement(order_P, row_starts)


class _Rows(NamedTuple):
    """A range of rows whose pieces have the same lengths: the first, how many, pieces in each."""

    first: int
    size: int
    pieces: int


class _Fill(NamedTuple):
    """The next pieces go into these rows, this many into each."""

    rows: _Rows
    each: int


class _OpenRows:
    """All rows, as ranges by their remaining space."""

    def __init__(self, sequence_length: int) -> None:
        self._sequence_length = sequence_length
        self._num_rows = 0
        self._ranges: dict[int, list[_Rows]] = defaultdict(list)
        self._spaces = 0  # a bit for each space that some rows have

    def fill(self, length: int, count: int) -> Iterator[_Fill]:
        """Packs a number of pieces of one length, no longer than those before."""
        while count:
            space, rows = self._take(length, count)
            each = space // length
            full = min(rows.size, count // each)
            if full:
                yield self._put(_Rows(rows.first, full, rows.pieces), space, length, each)
                count -= full * each
            rest = _Rows(rows.first + full, rows.size - full, rows.pieces)
            if rest.size and count:  # fewer pieces are left than one row holds
                yield self._put(rest._replace(size=1), space, length, count)
                rest = _Rows(rest.first + 1, rest.size - 1, rest.pieces)
                count = 0
            if rest.size:
                self._put(rest, space, length, 0)

    def pieces_per_row(self) -> NDArray[np.int64]:
        """Returns the number of pieces of each row."""
        pieces = np.zeros(self._num_rows, np.int64)
        for ranges in self._ranges.values():
            for rows in ranges:
                pieces[rows.first : rows.first + rows.size] = rows.pieces
        return pieces

    def _take(self, length: int, count: int) -> tuple[int, _Rows]:
        """Removes a range of the fullest rows that a piece fits into; adds rows if none does."""
        fitting = self._spaces >> length
        if not fitting:
            rows = _Rows(self._num_rows, -(-count // (self._sequence_length // length)), 0)
            self._num_rows += rows.size
            return self._sequence_length, rows
        space = length + (fitting & -fitting).bit_length() - 1
        ranges = self._ranges[space]
        rows = ranges.pop()
        if not ranges:
            self._spaces ^= 1 << space
        return space, rows

    def _put(self, rows: _Rows, space: int, length: int, each: int) -> _Fill:
        """Puts back a range of rows, with so many more pieces in each."""
        remaining = space - length * each
        self._ranges[remaining].append(rows._replace(pieces=rows.pieces + each))
        self._spaces |= 1 << remaining
        return _Fill(rows, each)
