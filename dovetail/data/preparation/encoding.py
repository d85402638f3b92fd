"""The second pass over a corpus: pieces become token files, and the files are joined to splits."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.interfaces import (
    HELD_OUT,
    SPLITS,
    TRAIN,
    Document,
    ShardedCorpus,
    SplitSummary,
    Tokenizer,
)
from dovetail.data.preparation.ledger import Ledger
from dovetail.data.preparation.pieces import CorpusPiece, documents_of
from dovetail.data.preparation.splits import key_of
from dovetail.data.preparation.survey import Advance
from dovetail.data.store import STARTS_DTYPE, token_dtype_for

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
    dtype = token_dtype_for(tokenizer.vocab_size)
    token_bytes = functools.cache(lambda: tokenizer.token_bytes)
    writers = {split: _SplitWriter(ledger, piece.number, split, dtype) for split in SPLITS}
    try:
        for documents in _batches(corpus, piece):
            for document, ids in zip(documents, _encode(tokenizer, documents), strict=True):
                split = HELD_OUT if key_of(document.name) <= held_out_limit else TRAIN
                size = (
                    len(document.text.encode("utf-8"))
                    if document.ids is None
                    else int(token_bytes()[ids].sum())
                )
                writers[split].add(np.append(ids, tokenizer.end_of_text), size)
                advance(size)
    finally:
        for writer in writers.values():
            writer.close()
    result = {split: vars(writer.summary()) for split, writer in writers.items()}
    suffixes = [suffix for split in SPLITS for suffix in (split, _starts(split))]
    ledger.record(piece.number, result, suffixes)
    return result


def join_pieces(
    folder: Path, ledger: Ledger, results: Sequence[dict[str, Any]]
) -> dict[str, SplitSummary]:
    """Joins the files of all pieces to `SPLIT.tokens` and `SPLIT.starts`."""
    summaries = {}
    for split in SPLITS:
        parts = [SplitSummary(**result[split]) for result in results]
        before = 0
        with (
            (folder / f"{split}.tokens").open("wb") as tokens,
            (folder / f"{split}.starts").open("wb") as starts,
        ):
            for number, part in enumerate(parts):
                with ledger.file(number, split).open("rb") as stream:
                    shutil.copyfileobj(stream, tokens, 2**22)
                own = np.fromfile(ledger.file(number, _starts(split)), STARTS_DTYPE)
                starts.write((own + before).astype(STARTS_DTYPE).tobytes())
                before += part.tokens
        summaries[split] = SplitSummary(
            sum(part.documents for part in parts),
            sum(part.bytes for part in parts),
            before,
        )
    return summaries


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


def _encode(tokenizer: Tokenizer, documents: Sequence[Document]) -> Iterator[NDArray[np.int32]]:
    """Yields the ids of each document, without end of text."""
    texts = [document.text for document in documents if document.ids is None]
    encoded = iter(tokenizer.encode_all(texts) if texts else [])
    for document in documents:
        yield next(encoded) if document.ids is None else _checked_ids(document, tokenizer)


def _checked_ids(document: Document, tokenizer: Tokenizer) -> NDArray[np.int32]:
    """Returns the ids of a document that is tokenized already; the tokenizer must have them all."""
    ids = document.ids
    assert ids is not None
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < tokenizer.vocab_size:
        raise ConfigError(
            f"{document.name}: it has token ids from {int(ids.min())} to {int(ids.max())}, but the "
            f"tokenizer has {tokenizer.vocab_size}. Set input.tokenizer to the one that made them."
        )
    has_end = len(ids) and int(ids[-1]) == tokenizer.end_of_text
    return ids[:-1] if has_end else ids


def _starts(split: str) -> str:
    """Returns the suffix of the file with the start of each document."""
    return f"{split}-starts"


class _SplitWriter:
    """Writes the documents of one split of a piece."""

    def __init__(self, ledger: Ledger, number: int, split: str, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._stream: BinaryIO = ledger.draft(number, split).open("wb")
        self._starts_file = ledger.draft(number, _starts(split))
        self._starts: list[int] = []
        self._bytes = self._tokens = 0

    def add(self, ids: NDArray[Any], size: int) -> None:
        """Appends a document."""
        self._starts.append(self._tokens)
        self._stream.write(ids.astype(self._dtype).tobytes())
        self._tokens += len(ids)
        self._bytes += size

    def close(self) -> None:
        """Writes the starts, and closes the file."""
        self._stream.close()
        np.array(self._starts, STARTS_DTYPE).tofile(self._starts_file)

    def summary(self) -> SplitSummary:
        """Returns what it has written."""
        return SplitSummary(len(self._starts), self._bytes, self._tokens)
