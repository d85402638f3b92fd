"""Packing: documents laid end to end and cut into rows, by index arithmetic alone.

Row i reads the tokens from i*S on and predicts each one's successor, so every token of a split is
a target once. Nothing is packed beforehand: which document a token belongs to is looked up in the
sorted document starts, so any row of any split is made at once.

B rows, S sequence, T = S + 1 (a row with the successor of its last token).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.data.store import TokenSplit

if TYPE_CHECKING:
    from dovetail.module import HostBatch

TARGET_BYTES = "target_bytes"
"""The extra that says how many bytes of text each counted target stands for."""


def num_rows(num_tokens: int, sequence_length: int) -> int:
    """Returns how many rows a split makes; the last one may end in padding."""
    return -(-(num_tokens - 1) // sequence_length) if num_tokens > 1 else 0


def pack(
    split: TokenSplit,
    rows_B: NDArray[np.int64],
    sequence_length: int,
    end_of_text: int,
    token_bytes: NDArray[np.int32],
) -> HostBatch:
    """Returns the batch of some rows of a split; a negative row number is a row of padding."""
    # Imported here because it brings JAX, which preparing data does not need.
    from dovetail.module import Batch

    starts_B1 = rows_B[:, None] * sequence_length
    places_BT = starts_B1 + np.arange(sequence_length + 1)
    exists_BT = (rows_B[:, None] >= 0) & (places_BT < len(split.tokens))
    places_BT = np.where(exists_BT, places_BT, 0)
    tokens_BT = np.where(exists_BT, split.tokens[places_BT], end_of_text).astype(np.int32)
    documents_BT = np.searchsorted(split.starts, places_BT, side="right") - 1

    documents_BS, exists_BS = documents_BT[:, :-1], exists_BT[:, :-1]
    # A document that began before the row counts its positions from the row's start: what came
    # before cannot be seen, and positions stay below the sequence length.
    origins_BS = np.maximum(split.starts[documents_BS], starts_B1)
    counted_BS = exists_BT[:, 1:] & (documents_BT[:, 1:] == documents_BS)
    targets_BS = tokens_BT[:, 1:]
    return Batch(
        tokens=tokens_BT[:, :-1],
        targets=targets_BS,
        positions=np.where(exists_BS, places_BT[:, :-1] - origins_BS, 0).astype(np.int32),
        segment_ids=np.where(exists_BS, documents_BS - documents_BS[:, :1] + 1, 0).astype(np.int32),
        loss_weights=counted_BS.astype(np.float32),
        extras={TARGET_BYTES: np.where(counted_BS, token_bytes[targets_BS], 0).astype(np.int32)},
    )
