"""Inspects an input: prepares its data, counts, and decodes some rows of a batch.

N documents of a source.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.input import PackedBatches, PackedInput
from dovetail.data.inspection.decoding import RowDecoder
from dovetail.data.inspection.facts import DataInspection, InspectedRow, InspectedSource
from dovetail.data.interfaces import SPLITS, TRAIN, PreparedData
from dovetail.data.mixture import MixtureInput
from dovetail.data.packing import PackedRows
from dovetail.data.packing.pieces import document_lengths
from dovetail.utils import plural

_QUANTILES = {
    "min": 0.0,
    "5%": 0.05,
    "25%": 0.25,
    "median": 0.5,
    "75%": 0.75,
    "95%": 0.95,
    "max": 1,
}
_MAX_COUNTED = 1000  # batches


def inspect_data(
    source: object,
    *,
    steps: int,
    step: int = 0,
    rows: int | None = 2,
    split: str = TRAIN,
    progress: bool = True,
) -> DataInspection:
    """Returns what an input gives a model: `TokenInput`, `MixtureInput`, or one built on them.

    Args:
        source: the input.
        steps: the number of training steps, for the epochs of each source.
        step: the step whose rows are read; of the held-out split, the number of the batch.
        rows: how many of its rows; None reads all.
        split: `train` or `held_out`.
        progress: whether to show the progress of preparing data.
    """
    if not isinstance(source, PackedInput):
        raise ConfigError(
            f"input: {type(source).__name__} has no documents in rows to show; expected a "
            "TokenInput, a MixtureInput, or an input that inherits from PackedInput."
        )
    _check(split, step, rows)
    prepared = source.prepare(progress)
    batch_size, sequence_length = source.spec().tokens.shape
    counted = _counted_batches(source, batch_size, steps)
    return DataInspection(
        split=split,
        vocabulary=source.vocab_size,
        batch_size=batch_size,
        sequence_length=sequence_length,
        steps=steps,
        counted_batches=counted,
        sources=_sources(source, prepared, split, steps, counted),
        step=step,
        batch=source.batch_number(step) if split == TRAIN else step,
        rows=_rows(source, split, step, slice(0, rows)),
    )


def _check(split: str, step: int, rows: int | None) -> None:
    if split not in SPLITS:
        raise ConfigError(f"split: expected {' or '.join(SPLITS)}, got {split!r}.")
    if step < 0:
        raise ConfigError(f"step: expected 0 or more, got {step}.")
    if rows is not None and rows < 0:
        raise ConfigError(f"rows: expected 0 or more, got {rows}.")


def _counted_batches(source: PackedInput, batch_size: int, steps: int) -> int:
    """Returns the number of batches of the first block, in which shares are exact."""
    block = source.block if isinstance(source, MixtureInput) else batch_size
    return max(1, min(-(-block // batch_size), steps, _MAX_COUNTED))


def _sources(
    source: PackedInput, prepared: PreparedData, split: str, steps: int, counted: int
) -> tuple[InspectedSource, ...]:
    parts, is_train = prepared.parts, split == TRAIN
    taken = source.rows_taken(steps) if is_train else {}
    names = Counter(name for step in range(counted) for name in source.sources(step))
    stages = source.shares() if is_train and isinstance(source, MixtureInput) else []
    return tuple(
        _source(
            name,
            packed,
            parts.get(name, prepared).splits[split].bytes,
            rows_taken=taken.get(name),
            shares={start: shares[name] for start, shares in stages},
            counted_share=names[name] / names.total() if is_train else None,
        )
        for name, packed in source.packed_rows(split).items()
    )


def _source(name: str, packed: PackedRows, num_bytes: int, **shares: Any) -> InspectedSource:
    lengths_N = document_lengths(packed.split)
    return InspectedSource(
        name=name,
        documents=len(lengths_N),
        tokens=len(packed.split.tokens),
        bytes=num_bytes,
        lengths=_quantiles(lengths_N),
        longer_than_a_row=int(np.count_nonzero(lengths_N > packed.sequence_length)),
        packing=packed.statistics(),
        **shares,
    )


def _quantiles(lengths_N: NDArray[np.int64]) -> dict[str, int]:
    if not len(lengths_N):
        return {}
    found = np.quantile(lengths_N, list(_QUANTILES.values()), method="nearest")
    return dict(zip(_QUANTILES, found.tolist(), strict=True))


def _rows(source: PackedInput, split: str, step: int, wanted: slice) -> tuple[InspectedRow, ...]:
    batches = _batches(source, split, step)
    if wanted.stop == 0:
        return ()
    batch = batches.batch(step, wanted)
    names, documents = batches.sources(step, wanted), batches.documents(step, wanted)
    decoder = RowDecoder(
        source.tokenizer,
        {
            name: document_lengths(packed.split)
            for name, packed in source.packed_rows(split).items()
        },
    )
    return tuple(
        decoder.decode(row, name, pieces, batch.tokens[row], batch.loss_weights[row])
        for row, (name, pieces) in enumerate(zip(names, documents, strict=True))
    )


def _batches(source: PackedInput, split: str, step: int) -> PackedBatches:
    if split == TRAIN:
        return source
    evaluation = source.held_out()
    if step >= evaluation.num_batches:
        raise ConfigError(
            f"step: the {split} split has {plural(evaluation.num_batches, 'batch', 'batches')}, "
            f"counted from 0, got {step}."
        )
    return evaluation
