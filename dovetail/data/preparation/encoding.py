"""The second pass over a corpus: pieces become token files, and the files are joined to splits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dovetail.data.interfaces import (
    HELD_OUT,
    SPLITS,
    TRAIN,
    BadRecord,
    Document,
    EncodedDocument,
    ShardedCorpus,
    SplitSummary,
    Tokenizer,
)
from dovetail.data.preparation.encoders import PieceEncoder
from dovetail.data.preparation.ledger import Ledger
from dovetail.data.preparation.pieces import CorpusPiece, documents_of
from dovetail.data.preparation.splits import key_of
from dovetail.data.preparation.survey import Advance, content_of
from dovetail.data.sources.bad_records import BadRecordCount
from dovetail.data.store import STARTS_DTYPE, WEIGHTS_DTYPE, token_dtype_for

# Text per call of the tokenizer: enough for all cores, and little memory.
_BYTES_PER_CALL = 2**20


def encode_piece(
    corpus: ShardedCorpus,
    tokenizer: Tokenizer,
    piece: CorpusPiece,
    held_out_limit: int,
    ledger: Ledger,
    advance: Advance,
) -> dict[str, Any]:
    """Writes the tokens of a piece by split, records it, and returns the size of each split."""
    encoder, records = PieceEncoder(corpus, tokenizer), BadRecordCount.of(corpus)
    dtype = token_dtype_for(tokenizer.vocab_size)
    writers = {
        split: _SplitWriter(ledger, piece.number, split, dtype, encoder.has_weights)
        for split in SPLITS
    }
    try:
        for documents in _batches(corpus, piece):
            for document, found in encoder.encode(documents):
                records.add(found)
                if not isinstance(found, BadRecord):
                    split = HELD_OUT if key_of(document.name) <= held_out_limit else TRAIN
                    for each in found:
                        writers[split].add(each, encoder.bytes_of(document, each))
                advance(len(content_of(document)))
    finally:
        for writer in writers.values():
            writer.close()
    if records.is_hopeless:
        raise records.error(corpus.name)
    sizes = {split: vars(writer.summary()) for split, writer in writers.items()}
    result = {**sizes, "encoding": records.as_json()}
    ledger.record(piece.number, result, [name for each in writers.values() for name in each.files])
    return result


def join_pieces(
    folder: Path, ledger: Ledger, results: Sequence[Mapping[str, Any]]
) -> dict[str, SplitSummary]:
    """Joins the files of all pieces to `SPLIT.tokens`, `SPLIT.starts` and `SPLIT.weights`."""
    summaries = {}
    for split in SPLITS:
        parts = [SplitSummary(**result[split]) for result in results]
        _concatenate(folder / f"{split}.tokens", ledger, split, len(parts))
        if any(ledger.file(number, _weights(split)).exists() for number in range(len(parts))):
            _concatenate(folder / f"{split}.weights", ledger, _weights(split), len(parts))
        before = 0
        with (folder / f"{split}.starts").open("wb") as starts:
            for number, part in enumerate(parts):
                own = np.fromfile(ledger.file(number, _starts(split)), STARTS_DTYPE)
                starts.write((own + before).astype(STARTS_DTYPE).tobytes())
                before += part.tokens
        summaries[split] = SplitSummary(
            sum(part.documents for part in parts),
            sum(part.bytes for part in parts),
            before,
        )
    return summaries


def _concatenate(target: Path, ledger: Ledger, suffix: str, count: int) -> None:
    with target.open("wb") as joined:
        for number in range(count):
            with ledger.file(number, suffix).open("rb") as stream:
                shutil.copyfileobj(stream, joined, 2**22)


def _batches(corpus: ShardedCorpus, piece: CorpusPiece) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for found in documents_of(corpus, piece):
        if not isinstance(found, Document):
            continue  # the survey has counted it
        batch.append(found)
        size += len(found.text)
        if size >= _BYTES_PER_CALL:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _starts(split: str) -> str:
    """Returns the suffix of the file with the start of each document."""
    return f"{split}-starts"


def _weights(split: str) -> str:
    """Returns the suffix of the file with the loss weight of each token."""
    return f"{split}-weights"


class _SplitWriter:
    """Writes the documents of one split of a piece."""

    def __init__(
        self, ledger: Ledger, number: int, split: str, dtype: np.dtype[Any], has_weights: bool
    ) -> None:
        self._dtype = dtype
        self._tokens_file: BinaryIO = ledger.draft(number, split).open("wb")
        self._weights_file: BinaryIO | None = None
        self.files = [split, _starts(split)]
        """The suffixes of what it writes."""
        if has_weights:
            self._weights_file = ledger.draft(number, _weights(split)).open("wb")
            self.files.append(_weights(split))
        self._starts_file = ledger.draft(number, _starts(split))
        self._starts: list[int] = []
        self._bytes = self._tokens = 0

    def add(self, encoded: EncodedDocument, size: int) -> None:
        """Appends a document, which stands for so many bytes."""
        self._starts.append(self._tokens)
        self._tokens_file.write(encoded.ids.astype(self._dtype).tobytes())
        if self._weights_file is not None:
            assert encoded.weights is not None
            self._weights_file.write(encoded.weights.astype(WEIGHTS_DTYPE).tobytes())
        self._tokens += len(encoded.ids)
        self._bytes += size

    def close(self) -> None:
        """Writes the starts, and closes the files."""
        self._tokens_file.close()
        if self._weights_file is not None:
            self._weights_file.close()
        np.array(self._starts, STARTS_DTYPE).tofile(self._starts_file)

    def summary(self) -> SplitSummary:
        """Returns what it has written."""
        return SplitSummary(len(self._starts), self._bytes, self._tokens)
