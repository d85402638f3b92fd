"""Answers: the expected answers to prompts as one batch, to compute their loss.

B rows, S sequence, T = S + 1 (a row and the target of its last token).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dovetail.data.interfaces import Tokenizer

if TYPE_CHECKING:
    from dovetail.module import BatchSpec, HostBatch

_LENGTH_MULTIPLE = 64  # so that other answers seldom compile another program


class Answers:
    """One batch: a row for each prompt with its answer, whose tokens alone have a loss."""

    num_batches = 1

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        answers: Sequence[str],
        rows_multiple: int = 1,
    ) -> None:
        """Tokenizes.

        Args:
            tokenizer: encodes prompts and answers, each on its own.
            prompts: one a row.
            answers: what is expected after them.
            rows_multiple: the number of rows becomes a multiple of it; the others are padding.
        """
        asked, answered = tokenizer.encode_all(prompts), tokenizer.encode_all(answers)
        longest = max(len(a) + len(b) for a, b in zip(asked, answered, strict=True))
        rows = _round_up(len(prompts), rows_multiple)
        length = _round_up(longest, _LENGTH_MULTIPLE)
        self._tokens_BT = np.zeros((rows, length + 1), np.int32)
        self._segment_ids_BS = np.zeros((rows, length), np.int32)
        self._loss_weights_BS = np.zeros((rows, length), np.float32)
        for row, (before, after) in enumerate(zip(asked, answered, strict=True)):
            end = len(before) + len(after)
            self._tokens_BT[row, :end] = np.concatenate([before, after])
            self._segment_ids_BS[row, : end - 1] = 1
            self._loss_weights_BS[row, len(before) - 1 : end - 1] = 1

    def spec(self) -> BatchSpec:
        """Returns the shapes of the batch."""
        from dovetail.module import sequence_batch_spec

        return sequence_batch_spec(*self._segment_ids_BS.shape)

    def batch(self, index: int, rows: slice | None = None) -> HostBatch:
        """Returns the batch, or some of its rows."""
        from dovetail.module import TokenBatch

        chosen = rows or slice(None)
        segment_ids_BS = self._segment_ids_BS[chosen]
        positions_S = np.arange(segment_ids_BS.shape[1], dtype=np.int32)
        return TokenBatch(
            tokens=self._tokens_BT[chosen, :-1],
            targets=self._tokens_BT[chosen, 1:],
            positions=np.broadcast_to(positions_S, segment_ids_BS.shape),
            segment_ids=segment_ids_BS,
            loss_weights=self._loss_weights_BS[chosen],
        )


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
