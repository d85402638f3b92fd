"""What an inspection found: the sources of an input, and some rows of one of its batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dovetail.data.packing import PackingStatistics


@dataclass(frozen=True)
class TextSpan:
    """Consecutive tokens of a row, decoded.

    Attributes:
        text: the text of the tokens.
        has_loss: whether the row predicts each of them, with a loss weight above zero.
        is_special: whether it is a special token, which no ordinary text becomes.
    """

    text: str
    has_loss: bool
    is_special: bool = False


@dataclass(frozen=True)
class InspectedPiece:
    """A piece of a document in a row.

    Attributes:
        document: the index of the document in the split of its source.
        offset: the offset in the document of the piece's first token.
        length: the number of tokens.
        document_length: the number of tokens of the whole document.
        tokens_with_loss: how many of the piece's targets count in the loss.
        spans: the decoded tokens.
    """

    document: int
    offset: int
    length: int
    document_length: int
    tokens_with_loss: int
    spans: tuple[TextSpan, ...]

    @property
    def text(self) -> str:
        """The text of the whole piece."""
        return "".join(span.text for span in self.spans)


@dataclass(frozen=True)
class InspectedRow:
    """A row of a global batch: the pieces of documents that it holds, and padding."""

    row: int
    source: str
    pieces: tuple[InspectedPiece, ...]
    padding: int


@dataclass(frozen=True)
class InspectedSource:
    """A corpus of the input, in one split.

    Attributes:
        name: the name of the source.
        documents: the number of documents.
        tokens: the number of tokens, with an end of text for each document.
        bytes: the bytes of their text.
        lengths: tokens per document: minimum, quantiles and maximum by name.
        longer_than_a_row: the number of documents that no row holds in one piece.
        packing: how well the documents fill the rows.
        rows_taken: rows that the training takes; None for the held-out split.
        shares: the configured share of the rows, by the batch from which it holds.
        counted_share: the share in the first batches, counted; None for the held-out split.
    """

    name: str
    documents: int
    tokens: int
    bytes: int
    lengths: Mapping[str, int]
    longer_than_a_row: int
    packing: PackingStatistics
    rows_taken: int | None = None
    shares: Mapping[int, float] = field(default_factory=dict)
    counted_share: float | None = None

    @property
    def bytes_per_token(self) -> float:
        """The bytes of text per token."""
        return self.bytes / self.tokens if self.tokens else 0.0

    @property
    def epochs(self) -> float | None:
        """How often the training repeats the rows."""
        if self.rows_taken is None or not self.packing.rows:
            return None
        return self.rows_taken / self.packing.rows

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        derived = {"bytes_per_token": self.bytes_per_token, "epochs": self.epochs}
        return {**vars(self), **derived, "packing": self.packing.facts()}


@dataclass(frozen=True)
class DataInspection:
    """What an input gives a model.

    Attributes:
        split: `train` or `held_out`.
        vocabulary: the number of token ids.
        batch_size: rows of a global batch.
        sequence_length: tokens of a row.
        steps: the number of training steps that `rows_taken` is for.
        counted_batches: the batches that `counted_share` is of.
        sources: the corpora.
        step: the step whose rows were read; of the held-out split, the number of the batch.
        batch: the number of that step's batch: the step plus the batches skipped before it.
        rows: the rows that were read.
    """

    split: str
    vocabulary: int
    batch_size: int
    sequence_length: int
    steps: int
    counted_batches: int
    sources: tuple[InspectedSource, ...]
    step: int
    batch: int
    rows: tuple[InspectedRow, ...]

    @property
    def bytes_per_token(self) -> float:
        """The bytes of text per token, over all sources."""
        tokens = sum(source.tokens for source in self.sources)
        return sum(source.bytes for source in self.sources) / tokens if tokens else 0.0

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            **vars(self),
            "bytes_per_token": self.bytes_per_token,
            "sources": [source.facts() for source in self.sources],
            "rows": [asdict(row) for row in self.rows],
        }

    def report(self) -> str:
        """Returns the statistics and the decoded rows as text.

        Brackets ⟦ ⟧ enclose tokens without loss.
        """
        from dovetail.data.inspection.report import overview, plain, samples

        return f"{overview(self)}\n\n{plain(samples(self))}".rstrip("\n")

    def documents_report(self) -> str:
        """Returns which documents the rows hold, as a table."""
        from dovetail.data.inspection.report import documents

        return documents(self)
