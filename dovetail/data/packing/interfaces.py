"""The interfaces of packings, and the records that they exchange.

A packing decides which pieces of which documents a row holds. Everything else (targets, positions,
segment ids, loss weights) follows from the pieces, so a new packing is a new way to arrange them.

P pieces of documents, B rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.data.packing.batch import make_batch
from dovetail.data.packing.pieces import Pieces
from dovetail.data.packing.transforms import TokenTransform
from dovetail.data.store import TokenSplit

if TYPE_CHECKING:
    from dovetail.module import HostBatch


@dataclass(frozen=True)
class IndexPlace:
    """Where a packing may keep an index of a split.

    Attributes:
        folder: a folder for files that can be made again, such as that of the token stores.
        name: begins the name of the index: the name of the store and of the split.
        progress: whether to show the progress of building it.
    """

    folder: Path
    name: str
    progress: bool = True


@dataclass(frozen=True)
class DocumentPiece:
    """A piece of a document in a row.

    Attributes:
        document: the index of the document in its split.
        offset: the offset of the piece's first token in the document.
        length: the number of tokens.
        position: the position in the row of its first token.
    """

    document: int
    offset: int
    length: int
    position: int


@dataclass(frozen=True)
class PackingStatistics:
    """How well a split fills its rows.

    Attributes:
        rows: the number of rows.
        sequence_length: the length of a row.
        documents: the documents of the split.
        tokens: the tokens in the rows; the rest of the rows is padding.
        documents_split: documents with pieces in several rows.
        documents_dropped: documents that no row has a token of.
        tokens_dropped: tokens that a packing leaves out on purpose, as of dropped documents.
    """

    rows: int
    sequence_length: int
    documents: int
    tokens: int
    documents_split: int
    documents_dropped: int = 0
    tokens_dropped: int = 0

    @property
    def padding(self) -> int:
        """The number of padding tokens in all rows."""
        return self.rows * self.sequence_length - self.tokens

    @property
    def fill_rate(self) -> float:
        """The fraction of the rows that is no padding."""
        return self.tokens / (self.rows * self.sequence_length) if self.rows else 0.0

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {**vars(self), "padding": self.padding, "fill_rate": self.fill_rate}


class PackedRows(ABC):
    """The rows of a split at one sequence length."""

    def __init__(self, split: TokenSplit, sequence_length: int) -> None:
        self.split, self.sequence_length = split, sequence_length

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of rows."""

    @abstractmethod
    def pieces(self, rows_B: NDArray[np.int64]) -> Pieces:
        """Returns the pieces of documents in some rows; a negative row number has none."""

    @abstractmethod
    def statistics(self) -> PackingStatistics:
        """Returns how well the documents fill the rows."""

    def documents(self, rows_B: NDArray[np.int64]) -> list[list[DocumentPiece]]:
        """Returns which documents some rows hold: a list of pieces for each row."""
        pieces = self.pieces(rows_B)
        documents_P, offsets_P = pieces.documents(self.split)
        found: list[list[DocumentPiece]] = [[] for _ in rows_B]
        columns = np.stack([documents_P, offsets_P, pieces.lengths_P, pieces.positions_P], axis=1)
        for row, numbers in zip(pieces.rows_P.tolist(), columns.tolist(), strict=True):
            found[row].append(DocumentPiece(*numbers))
        return found

    def batch(
        self,
        rows_B: NDArray[np.int64],
        end_of_text: int,
        token_bytes: NDArray[np.int32],
        transforms: Sequence[TokenTransform] = (),
    ) -> HostBatch:
        """Returns the batch of some rows; a negative row number makes a row of padding."""
        shape, pieces = (len(rows_B), self.sequence_length), self.pieces(rows_B)
        return make_batch(self.split, pieces, shape, end_of_text, token_bytes, transforms)


class Packing(Protocol):
    """A way to pack documents into rows."""

    def pack(
        self, split: TokenSplit, sequence_length: int, place: IndexPlace | None = None
    ) -> PackedRows:
        """Returns the rows of a split, always the same ones.

        Args:
            split: the documents, each of which ends in an end of text.
            sequence_length: the length of a row.
            place: where to keep an index; None keeps it in memory.
        """
        ...
