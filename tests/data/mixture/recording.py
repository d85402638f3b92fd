"""A mixture that writes down the digest of every row that a process makes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.config import incidental
from dovetail.data import (
    BestFit,
    ByteTokenizer,
    MixtureInput,
    MixtureSource,
    MixtureStage,
    TextFiles,
)

SOURCES = ("web", "code", "books")
SEQUENCE = 64


class RecordingMixture(MixtureInput):
    """A mixture whose rows are recorded: step, row, digest."""

    class Config(MixtureInput.Config):
        """Where to; each process has a file of its own."""

        log: str = incidental("")

    def batch(self, step: int, rows: slice | None = None) -> Any:
        batch = super().batch(step, rows)
        first = 0 if rows is None else rows.start
        lines = []
        for row in range(len(batch.tokens)):
            arrays = (batch.tokens, batch.targets, batch.positions, batch.segment_ids)
            content = b"".join(np.ascontiguousarray(each[row]).tobytes() for each in arrays)
            weights = batch.loss_weights[row].tobytes()
            digest = hashlib.blake2b(content + weights, digest_size=8).hexdigest()
            lines.append(f"{step} {first + row} {digest}\n")
        with Path(self.config.log, f"{os.getpid()}.txt").open("a") as file:
            file.write("".join(lines))
        return batch


def mixture(texts: Path, log: Path | str) -> RecordingMixture.Config:
    """Three weighted sources with best-fit packing, and a change of the weights at step 10."""
    weights = dict(zip(SOURCES, (5.0, 2.0, 0.0), strict=True))
    return RecordingMixture.Config(
        sources={
            name: MixtureSource.Config(corpus=TextFiles.Config(files=str(texts / name)), weight=w)
            for name, w in weights.items()
        },
        stages={"annealing": MixtureStage.Config(start=10, weights={"code": 1.0, "books": 3.0})},
        tokenizer=ByteTokenizer.Config(),
        packing=BestFit.Config(),
        sequence_length=SEQUENCE,
        batch_size=8,
        block=28,
        log=str(log),
    )
