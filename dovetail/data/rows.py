"""The packed rows of one or several corpora that share a tokenizer, prepared at first use."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.interfaces import SPLITS, Corpus, PreparedData, SplitSummary, Tokenizer
from dovetail.data.packing import (
    TARGET_BYTES,
    IndexPlace,
    PackedRows,
    Packing,
    TokenTransform,
)
from dovetail.data.preparation import open_store, prepare_stores
from dovetail.data.store import TokenSplit, TokenStore, data_folder

if TYPE_CHECKING:
    from dovetail.module import BatchSpec, HostBatch

MIXTURE = "mixture.json"
"""In the folder that a run keeps of several corpora: the store of each."""


@dataclass(frozen=True)
class RowFormat:
    """How documents become rows, for all corpora."""

    tokenizer: Tokenizer
    packing: Packing
    transforms: Sequence[TokenTransform]
    sequence_length: int


class SourceRows:
    """The packed rows of one corpus."""

    def __init__(self, name: str, store: TokenStore, form: RowFormat) -> None:
        self._name, self._form, self._store_name = name, form, store.folder.name
        self._splits: dict[str, TokenSplit] = {split: store.split(split) for split in SPLITS}
        self._packed: dict[str, PackedRows] = {}
        self._token_bytes = form.tokenizer.token_bytes
        self._lock = threading.Lock()

    def packed(self, split: str, progress: bool = True) -> PackedRows:
        """Returns the rows of a split; packs it at first use."""
        with self._lock:
            if split not in self._packed:
                # The token store may be that of a run, which may be another user's.
                place = IndexPlace(data_folder(), f"{self._store_name}-{split}", progress)
                self._packed[split] = self._form.packing.pack(
                    self._splits[split], self._form.sequence_length, place
                )
            return self._packed[split]

    def count(self, split: str) -> int:
        """Returns the number of rows of a split, which must not be empty."""
        packed = self.packed(split)
        if packed.num_rows:
            return packed.num_rows
        if len(self._splits[split].starts):
            raise ConfigError(
                f"corpus {self._name}: packing leaves no row of its {split} split. "
                f"{packed.statistics().documents_dropped:,} documents are dropped. Make "
                "input.sequence_length longer, or split long documents."
            )
        raise ConfigError(
            f"corpus {self._name}: its {split} split is empty, because the corpus is a "
            "single document. Add documents, or cut it into more (Files.passage_bytes)."
        )

    def take(self, split: str, rows_B: NDArray[np.int64]) -> HostBatch:
        """Returns the batch of some rows of a split."""
        vocabulary = self._form.tokenizer.end_of_text, self._token_bytes
        return self.packed(split).batch(rows_B, *vocabulary, self._form.transforms)


class PreparedRows:
    """The rows of all corpora of an input; shared with its evaluations."""

    def __init__(self, corpora: Mapping[str, Corpus], form: RowFormat) -> None:
        self._corpora, self._form = corpora, form
        self._trained: Path | None = None
        # The prefetching thread and the main thread may both be the first to prepare.
        self._lock = threading.Lock()
        self._prepared: PreparedData | None = None
        self._sources: dict[str, SourceRows] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of all corpora; ready once the data is prepared."""
        return self._form.tokenizer

    @property
    def names(self) -> list[str]:
        """The names of the corpora."""
        return list(self._corpora)

    def spec(self, batch_size: int) -> BatchSpec:
        """Returns shapes, dtypes and logical axes of a batch, with no data."""
        # Imported here because it imports JAX, which preparing data does not need.
        from dovetail.module import sequence_batch_spec

        length = self._form.sequence_length
        return sequence_batch_spec(batch_size, length, {TARGET_BYTES: "int32"})

    def keep_tokenizer(self, folder: Path) -> None:
        """Uses the tokenizer of a folder for all corpora; none is trained."""
        self.tokenizer.load(folder)
        self._trained = folder

    def prepare(self, progress: bool = True) -> PreparedData:
        """Builds the token stores that do not exist, and returns a summary."""
        with self._lock:
            if self._prepared is None:
                stores = prepare_stores(self._corpora, self.tokenizer, progress, self._trained)
                self._adopt(stores)
            assert self._prepared is not None
            return self._prepared

    def use_prepared(self, folder: Path) -> None:
        """Uses what `keep_data` kept, or one token store; the corpora are not read."""
        with self._lock:
            if (folder / MIXTURE).exists():
                names = json.loads((folder / MIXTURE).read_text(encoding="utf-8"))
                folders = {name: _kept_or_cached(folder, store) for name, store in names.items()}
            else:
                folders = {next(iter(self._corpora)): folder}
            self._adopt({name: open_store(path, self.tokenizer) for name, path in folders.items()})

    def check_corpora(self) -> None:
        """Raises a ConfigError for a corpus that is missing, unreadable or empty; not if unset."""
        for name, corpus in self._corpora.items():
            if getattr(corpus, "is_unset", False):
                continue  # a plan or a dry run needs no data; preparing it says what to name
            if self._prepared is None and next(iter(corpus.documents()), None) is None:
                raise ConfigError(f"corpus {name}: it has no documents.")

    def source(self, name: str) -> SourceRows:
        """Returns the rows of a corpus; prepares the data at first use."""
        self.prepare()
        return self._sources[name]

    def _adopt(self, opened: Mapping[str, tuple[TokenStore, PreparedData]]) -> None:
        self._sources = {
            name: SourceRows(name, store, self._form) for name, (store, _) in opened.items()
        }
        parts = {name: prepared for name, (_, prepared) in opened.items()}
        self._prepared = joined(parts)


def joined(parts: Mapping[str, PreparedData]) -> PreparedData:
    """Returns the summary of several prepared corpora; of one, its own."""
    first = next(iter(parts.values()))
    if len(parts) == 1:
        return first
    names = {name: part.folder.name for name, part in sorted(parts.items())}
    digest = hashlib.blake2b(json.dumps(names).encode(), digest_size=6).hexdigest()
    splits = {
        split: SplitSummary(
            sum(part.splits[split].documents for part in parts.values()),
            sum(part.splits[split].bytes for part in parts.values()),
            sum(part.splits[split].tokens for part in parts.values()),
        )
        for split in SPLITS
    }
    return PreparedData(
        folder=data_folder() / f"mixture-{digest}",
        vocabulary=first.vocabulary,
        splits=splits,
        reused=all(part.reused for part in parts.values()),
        seconds=max(part.seconds for part in parts.values()),
        parts=dict(parts),
    )


def _kept_or_cached(folder: Path, store: str) -> Path:
    return folder / store if (folder / store).is_dir() else data_folder() / store
