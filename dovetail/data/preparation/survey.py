"""The first pass over a corpus: how many documents and bytes, what is bad, what is held out.

It keeps 16 bytes of each document, so that ten million documents take 160 MB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.interfaces import BadRecord, Document, ShardedCorpus
from dovetail.data.preparation.ledger import Ledger
from dovetail.data.preparation.pieces import CorpusPiece, documents_of, pieces_of
from dovetail.data.preparation.splits import held_out_limit, key_of
from dovetail.data.sources.bad_records import BadRecordCount

Advance = Callable[[int], None]

_KEYS = "keys"


@dataclass
class Survey:
    """What the first pass found.

    Attributes:
        bytes: of the text of all documents.
        records: documents and bad records, with examples and problems of these.
        keys: the hash of the name of each document.
        contents: the hash of the content of each document.
    """

    bytes: int = 0
    records: BadRecordCount = field(default_factory=BadRecordCount)
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    contents: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    @property
    def duplicates(self) -> int:
        """How many documents have the content of an earlier one."""
        return len(self.contents) - len(np.unique(self.contents))

    @property
    def held_out_limit(self) -> int:
        """The largest key of a held-out document."""
        return held_out_limit(self.keys)


def survey_piece(
    corpus: ShardedCorpus, piece: CorpusPiece, ledger: Ledger, advance: Advance
) -> dict[str, Any]:
    """Surveys a piece, records it in the ledger, and returns its counts."""
    keys, contents = [], []
    total, records = 0, BadRecordCount()
    for found in documents_of(corpus, piece):
        records.add(found)
        if isinstance(found, BadRecord):
            continue
        content = content_of(found)
        keys.append(key_of(found.name))
        contents.append(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big"))
        total += len(content)
        advance(len(content))
    np.array([keys, contents], "<u8").tofile(ledger.draft(piece.number, _KEYS))
    result = {"documents": len(keys), "bytes": total, **records.as_json()}
    ledger.record(piece.number, result, [_KEYS])
    return result


def join_surveys(results: Iterable[dict[str, Any]], ledger: Ledger) -> Survey:
    """Joins the surveys of all pieces, in their order."""
    survey, arrays = Survey(), []
    for number, result in enumerate(results):
        survey.bytes += result["bytes"]
        count = result["documents"] + result["bad"]
        survey.records.merge(BadRecordCount.from_json(result, count))
        shape = (2, result["documents"])
        arrays.append(np.fromfile(ledger.file(number, _KEYS), "<u8").reshape(shape))
    if arrays:
        survey.keys, survey.contents = np.concatenate(arrays, axis=1)
    return survey


def check_survey(survey: Survey, corpus: ShardedCorpus) -> None:
    """Raises a ConfigError for a corpus without text, with too many bad records, or equal names."""
    survey.records.allowed = BadRecordCount.of(corpus).allowed
    survey.records.check(corpus.name)
    if not len(survey.keys):
        raise ConfigError(
            f"corpus {corpus.name}: it has no text: all its documents are empty. "
            "Point the corpus at files with text."
        )
    if len(np.unique(survey.keys)) < len(survey.keys):
        raise ConfigError(
            f"corpus {corpus.name}: two documents are named {_repeated_name(corpus)!r}. The split "
            "depends on the names, so they must be unique."
        )


def add_bad_records(
    survey: Survey, results: Iterable[dict[str, Any]], corpus: ShardedCorpus
) -> None:
    """Adds the bad records that the second pass found; a ConfigError if there are too many.

    The first pass has counted them as documents.
    """
    for result in results:
        survey.records.merge(BadRecordCount.from_json(result["encoding"], 0))
    survey.records.check(corpus.name)


def content_of(document: Document) -> bytes:
    """Returns the text or the token ids of a document as bytes."""
    return document.text.encode("utf-8") if document.ids is None else document.ids.tobytes()


def _repeated_name(corpus: ShardedCorpus) -> str:
    seen: set[str] = set()
    for document in all_documents(corpus):
        if document.name in seen:
            return document.name
        seen.add(document.name)
    return "(one that is gone)"


def all_documents(corpus: ShardedCorpus) -> Iterator[Document]:
    """Yields the documents of all pieces, without bad records."""
    for piece in pieces_of(corpus):
        for found in documents_of(corpus, piece):
            if isinstance(found, Document):
                yield found
