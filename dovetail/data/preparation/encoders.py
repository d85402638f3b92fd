"""From documents to token ids: by the tokenizer, or by the corpus's own encoder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.interfaces import (
    BadRecord,
    Document,
    DocumentEncoder,
    EncodedDocument,
    ShardedCorpus,
    Tokenizer,
)
from dovetail.data.preparation.pieces import with_encoder

Encoded = Sequence[EncodedDocument] | BadRecord
"""What a document became: sequences that end in an end of text, or a bad record."""


class PieceEncoder:
    """Encodes the documents of a corpus; it has weights if the corpus has an encoder of its own."""

    def __init__(self, corpus: ShardedCorpus, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_bytes = functools.cache(lambda: tokenizer.token_bytes)
        own = with_encoder(corpus)
        self.has_weights = own is not None
        self._encode: Callable[[Sequence[Document]], Iterator[Encoded]] = (
            functools.partial(_encode_texts, tokenizer)
            if own is None
            else functools.partial(_encode_weighted, own.encoder(tokenizer), tokenizer.end_of_text)
        )

    def encode(self, documents: Sequence[Document]) -> Iterator[tuple[Document, Encoded]]:
        """Yields each document with what it became."""
        yield from zip(documents, self._encode(documents), strict=True)

    def bytes_of(self, document: Document, encoded: EncodedDocument) -> int:
        """Returns the number of bytes of the text that the tokens of a document stand for."""
        if document.ids is None and not self.has_weights:
            return len(document.text.encode("utf-8"))
        return int(self._token_bytes()[encoded.ids].sum())


def _encode_texts(tokenizer: Tokenizer, documents: Sequence[Document]) -> Iterator[Encoded]:
    texts = [document.text for document in documents if document.ids is None]
    encoded = iter(tokenizer.encode_all(texts) if texts else [])
    for document in documents:
        ids = next(encoded) if document.ids is None else _checked_ids(document, tokenizer)
        yield [EncodedDocument(np.append(ids, tokenizer.end_of_text))]


def _encode_weighted(
    encode: DocumentEncoder, end_of_text: int, documents: Sequence[Document]
) -> Iterator[Encoded]:
    for document in documents:
        found = encode(document)
        if isinstance(found, BadRecord):
            yield found
        else:
            yield [_with_end(each, end_of_text) for each in found]


def _with_end(encoded: EncodedDocument, end_of_text: int) -> EncodedDocument:
    """Returns an example with its end of text, which does not count where it is added."""
    ids, weights = encoded.ids, encoded.weights
    weights = np.ones(len(ids), np.uint8) if weights is None else weights
    if len(ids) and ids[-1] == end_of_text:
        return EncodedDocument(ids, weights)
    return EncodedDocument(np.append(ids, end_of_text), np.append(weights, np.uint8(0)))


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
