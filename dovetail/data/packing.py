"""Packing: documents are concatenated and split into rows, by index arithmetic alone.

Row i starts at token i*S and predicts the next token at every position, so each token of a split is
a target once. Nothing is packed in advance: a binary search in the document starts finds the
segment of a token, so any row of any split is made directly.

B rows, S sequence, T = S + 1 (a row and the target of its last token).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.data.store import TokenSplit

if TYPE_CHECKING:
    from dovetail.module import HostBatch

TARGET_BYTES = "target_bytes"
"""The batch extra with the number of bytes of each target that counts in the loss."""


def num_rows(num_tokens: int, sequence_length: int) -> int:
    """Returns the number of rows of a split; the last one may end in padding."""
    return -(-(num_tokens - 1) // sequence_length) if num_tokens > 1 else 0


def pack(
    split: TokenSplit,
    rows_B: NDArray[np.int64],
    sequence_length: int,
    end_of_text: int,
    token_bytes: NDArray[np.int32],
) -> HostBatch:
    """Returns the batch of some rows of a split; a negative row number makes a row of padding."""
    # Imported here because it imports JAX, which preparing data does not need.
    from dovetail.module import TokenBatch

    starts_B1 = rows_B[:, None] * sequence_length
    offsets_BT = starts_B1 + np.arange(sequence_length + 1)
    exists_BT = (rows_B[:, None] >= 0) & (offsets_BT < len(split.tokens))
    offsets_BT = np.where(exists_BT, offsets_BT, 0)
    tokens_BT = np.where(exists_BT, split.tokens[offsets_BT], end_of_text).astype(np.int32)
    documents_BT = np.searchsorted(split.starts, offsets_BT, side="right") - 1

    documents_BS, exists_BS = documents_BT[:, :-1], exists_BT[:, :-1]
    # A document that began before the row counts its positions from the start of the row: earlier
    # tokens are not in the row, and positions stay below the sequence length.
    origins_BS = np.maximum(split.starts[documents_BS], starts_B1)
    counted_BS = exists_BT[:, 1:] & (documents_BT[:, 1:] == documents_BS)
    targets_BS = tokens_BT[:, 1:]
    return TokenBatch(
        tokens=tokens_BT[:, :-1],
        targets=targets_BS,
        positions=np.where(exists_BS, offsets_BT[:, :-1] - origins_BS, 0).astype(np.int32),
        segment_ids=np.where(exists_BS, documents_BS - documents_BS[:, :1] + 1, 0).astype(np.int32),
        loss_weights=counted_BS.astype(np.float32),
        extras={TARGET_BYTES: np.where(counted_BS, token_bytes[targets_BS], 0).astype(np.int32)},
    )
