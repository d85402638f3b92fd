"""The batch of some rows, made from the pieces of documents that they hold.

Each token of a row predicts the next token of its document, also where that one is in another row.
So whatever the packing, each token of a document but the first is a target at most once.

P pieces, N tokens of all pieces, B rows, S sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dovetail.data.packing.pieces import Pieces, count_up, ends_of
from dovetail.data.packing.transforms import PieceTokens, TokenTransform
from dovetail.data.store import TokenSplit

if TYPE_CHECKING:
    from dovetail.module import HostBatch

TARGET_BYTES = "target_bytes"
"""The batch extra with the number of bytes of each target that counts in the loss."""


def make_batch(
    split: TokenSplit,
    pieces: Pieces,
    shape: tuple[int, int],
    end_of_text: int,
    token_bytes: NDArray[np.int32],
    transforms: Sequence[TokenTransform] = (),
) -> HostBatch:
    """Returns the batch [B, S] of some pieces; the rest of the rows is padding."""
    # Imported here because it imports JAX, which preparing data does not need.
    from dovetail.module import TokenBatch

    found = _read(split, pieces, end_of_text, token_bytes)
    for transform in transforms:
        found = transform(found)
    cells_P = pieces.rows_P * shape[1] + pieces.positions_P
    cells_N = np.repeat(cells_P, pieces.lengths_P) + found.positions_N
    sizes_N = np.where(found.weights_N > 0, token_bytes[found.targets_N], 0)

    def rows(dtype: type, values_N: NDArray[Any], padding: int = 0) -> NDArray[Any]:
        values_BS: NDArray[Any] = np.full(shape, padding, dtype)
        values_BS.reshape(-1)[cells_N] = values_N
        return values_BS

    return TokenBatch(
        tokens=rows(np.int32, found.tokens_N, end_of_text),
        targets=rows(np.int32, found.targets_N, end_of_text),
        positions=rows(np.int32, found.positions_N),
        segment_ids=rows(np.int32, np.repeat(_segment_ids(pieces), pieces.lengths_P)),
        loss_weights=rows(np.float32, found.weights_N),
        extras={TARGET_BYTES: rows(np.int32, sizes_N)},
    )


def _read(
    split: TokenSplit, pieces: Pieces, end_of_text: int, token_bytes: NDArray[np.int32]
) -> PieceTokens:
    """Reads the tokens of some pieces, and the token after each."""
    documents_P, document_offsets_P = pieces.documents(split)
    # A piece counts its positions from its own start: earlier tokens of its document are not in
    # the row, and positions stay below the sequence length.
    positions_N = count_up(pieces.lengths_P)
    offsets_N = np.repeat(pieces.starts_P, pieces.lengths_P) + positions_N
    next_N = offsets_N + 1
    num_tokens = len(split.tokens)
    targets_N = split.tokens[np.minimum(next_N, num_tokens - 1)] if num_tokens else next_N
    counted_N = next_N < np.repeat(ends_of(documents_P, split), pieces.lengths_P)
    weights_N = counted_N.astype(np.float32)
    if split.weights is not None and num_tokens:  # those of the targets, as of answers
        weights_N *= split.weights[np.minimum(next_N, num_tokens - 1)]
    return PieceTokens(
        documents_P=documents_P,
        offsets_P=document_offsets_P,
        lengths_P=pieces.lengths_P,
        positions_N=positions_N,
        tokens_N=split.tokens[offsets_N],
        targets_N=np.where(next_N < num_tokens, targets_N, end_of_text),
        weights_N=weights_N,
        end_of_text=end_of_text,
        token_bytes=token_bytes,
        has_own_weights=split.weights is not None,
    )


def _segment_ids(pieces: Pieces) -> NDArray[np.int64]:
    """Returns the segment ids that separate the documents of a row: 1, 2, ... in each row."""
    first_of_row_P = np.searchsorted(pieces.rows_P, pieces.rows_P, side="left")
    return np.arange(len(pieces.rows_P)) - first_of_row_P + 1
