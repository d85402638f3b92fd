"""Decodes the tokens of a row, and says which of them the loss is of.

A batch has a loss weight for each position: that of predicting the next token. A token has loss if
the token before it, in the same row, predicts it with a weight above zero. So the first token of a
piece never has loss in its row.

L tokens of a piece, S sequence, N documents.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.data.inspection.facts import InspectedPiece, InspectedRow, TextSpan
from dovetail.data.interfaces import HasOffsets, Tokenizer
from dovetail.data.packing import DocumentPiece

_END_OF_TEXT = "<|endoftext|>"


class RowDecoder:
    """Decodes rows of the sources of an input."""

    def __init__(self, tokenizer: Tokenizer, lengths: Mapping[str, NDArray[np.int64]]) -> None:
        """Takes the tokenizer, and by source the number of tokens of each document."""
        self._tokenizer, self._lengths = tokenizer, lengths
        self._names = _special_names(tokenizer)

    def decode(
        self,
        row: int,
        source: str,
        pieces: Sequence[DocumentPiece],
        tokens_S: NDArray[np.integer[Any]],
        weights_S: NDArray[np.floating[Any]],
    ) -> InspectedRow:
        """Returns a row with the text of its pieces."""
        lengths_N = self._lengths[source]
        found = []
        for piece in pieces:
            own = slice(piece.position, piece.position + piece.length)
            tokens_L, weights_L = tokens_S[own], weights_S[own]
            has_loss_L = np.concatenate([[False], weights_L[:-1] > 0])
            found.append(
                InspectedPiece(
                    document=piece.document,
                    offset=piece.offset,
                    length=piece.length,
                    document_length=int(lengths_N[piece.document]),
                    tokens_with_loss=int(np.count_nonzero(weights_L > 0)),
                    spans=tuple(self._spans(tokens_L.tolist(), has_loss_L.tolist())),
                )
            )
        padding = len(tokens_S) - sum(piece.length for piece in pieces)
        return InspectedRow(row, source, tuple(found), padding)

    def _spans(self, ids: Sequence[int], has_loss: Sequence[bool]) -> list[TextSpan]:
        """Joins neighbours of one kind, so that a character of several tokens is decoded whole."""
        names = self._names
        keyed = [(loss, index in names) for index, loss in zip(ids, has_loss, strict=True)]
        spans, start = [], 0
        for (loss, is_special), group in itertools.groupby(keyed):
            end = start + len(list(group))
            own = ids[start:end]
            if is_special:
                text = "".join(names[index] for index in own)
            else:
                text = self._tokenizer.decode_bytes(own).decode("utf-8", "replace")
            spans.append(TextSpan(text, loss, is_special))
            start = end
        return spans


def _special_names(tokenizer: Tokenizer) -> dict[int, str]:
    """Returns what to show for the ids that decode to nothing."""
    silent = np.flatnonzero(tokenizer.token_bytes == 0).tolist()
    names = {index: f"<|id {index}|>" for index in silent}
    names[tokenizer.end_of_text] = _END_OF_TEXT
    if isinstance(tokenizer, HasOffsets):
        names |= {index: name for name, index in tokenizer.special_tokens.items()}
    return names
