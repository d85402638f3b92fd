"""The batch of some rows, made from the pieces of documents that they hold.

Each token of a row predicts the next token of its document, also where that one is in another row.
So whatever the packing, each token of a document but the first is a target at most once.

P pieces, N tokens of all pieces, B rows, S sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dovetail.data.packing.pieces import Pieces, count_up, ends_of
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
) -> HostBatch:
    """Returns the batch [B, S] of some pieces; the rest of the rows is padding."""
    # Imported here because it imports JAX, which preparing data does not need.
    from dovetail.module import TokenBatch

    # A piece counts its positions from its own start: earlier tokens of its document are not in
    # the row, and positions stay below the sequence length.
    positions_N = count_up(pieces.lengths_P)
    offsets_N = np.repeat(pieces.starts_P, pieces.lengths_P) + positions_N
    cells_P = pieces.rows_P * shape[1] + pieces.positions_P
    cells_N = np.repeat(cells_P, pieces.lengths_P) + positions_N

    num_tokens = len(split.tokens)
    next_N = offsets_N + 1
    targets_N = split.tokens[np.minimum(next_N, num_tokens - 1)] if num_tokens else next_N
    targets_N = np.where(next_N < num_tokens, targets_N, end_of_text)
    documents_P, _ = pieces.documents(split)
    counted_N = next_N < np.repeat(ends_of(documents_P, split), pieces.lengths_P)

    def rows(dtype: type, values_N: NDArray[Any], padding: int = 0) -> NDArray[Any]:
        values_BS: NDArray[Any] = np.full(shape, padding, dtype)
        values_BS.reshape(-1)[cells_N] = values_N
        return values_BS

    return TokenBatch(
        tokens=rows(np.int32, split.tokens[offsets_N], end_of_text),
        targets=rows(np.int32, targets_N, end_of_text),
        positions=rows(np.int32, positions_N),
        segment_ids=rows(np.int32, np.repeat(_segment_ids(pieces), pieces.lengths_P)),
        loss_weights=rows(np.float32, counted_N),
        extras={TARGET_BYTES: rows(np.int32, np.where(counted_N, token_bytes[targets_N], 0))},
    )


def _segment_ids(pieces: Pieces) -> NDArray[np.int64]:
    """Returns the segment ids that separate the documents of a row: 1, 2, ... in each row."""
    first_of_row_P = np.searchsorted(pieces.rows_P, pieces.rows_P, side="left")
    return np.arange(len(pieces.rows_P)) - first_of_row_P + 1
