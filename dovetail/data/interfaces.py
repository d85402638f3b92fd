"""What the parts of the data room promise each other and the trainer.

Parents type their children by these interfaces, so that a user's own corpus, tokenizer or input is
a new class and no edit. None of them imports JAX.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dovetail.module import BatchSpec, HostBatch

TRAIN = "train"
HELD_OUT = "held_out"
SPLITS = (TRAIN, HELD_OUT)


@dataclass(frozen=True)
class Document:
    """One text with a name that stays the same from run to run and from machine to machine."""

    name: str
    text: str


@dataclass(frozen=True)
class SplitSummary:
    """How much there is in a split."""

    documents: int
    bytes: int
    tokens: int


@dataclass(frozen=True)
class PreparedData:
    """An account of prepared data."""

    folder: Path
    vocabulary: int
    splits: dict[str, SplitSummary]
    reused: bool
    """Whether it was there already."""
    seconds: float

    @property
    def documents(self) -> int:
        """The number of documents in all splits."""
        return sum(split.documents for split in self.splits.values())

    @property
    def bytes(self) -> int:
        """The bytes of text in all splits."""
        return sum(split.bytes for split in self.splits.values())

    @property
    def tokens(self) -> int:
        """The tokens in all splits, with the end of text of every document."""
        return sum(split.tokens for split in self.splits.values())


class Corpus(Protocol):
    """A collection of documents."""

    @property
    def name(self) -> str:
        """A short name for people, which begins the name of the store's folder."""
        ...

    def fingerprint(self) -> str:
        """Returns a hash of the names and contents of all documents."""
        ...

    def documents(self) -> Iterator[Document]:
        """Yields the documents, always in the same order. Raises ConfigError if unreadable."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back. Its vocabulary size is known before it is fitted."""

    @property
    def name(self) -> str:
        """A short name for people, which is part of the name of the store's folder."""
        ...

    def fingerprint(self) -> str:
        """Returns a hash of everything that decides how a given corpus is tokenized."""
        ...

    @property
    def vocab_size(self) -> int:
        """The number of ids a model must provide for; some may go unused."""
        ...

    @property
    def end_of_text(self) -> int:
        """The id that closes every document."""
        ...

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """How many bytes of text each id stands for [vocab_size]; 0 for end of text."""
        ...

    def encode(self, text: str) -> NDArray[np.int32]:
        """Returns the ids of a text, without an end of text."""
        ...

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Returns the ids of several texts, which may be faster than one by one."""
        ...

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes that the ids stand for, which may end in half a character."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of the ids; bytes that are not UTF-8 become replacement characters."""
        ...

    def fit(self, texts: Iterable[str]) -> None:
        """Learns from the training split whatever there is to learn."""
        ...

    def save(self, folder: Path) -> None:
        """Writes what was learned into a folder."""
        ...

    def load(self, folder: Path) -> None:
        """Reads back what `save` wrote."""
        ...


class Input(Protocol):
    """An endless supply of training batches: a pure function of the config and the step."""

    def spec(self) -> BatchSpec:
        """Returns shapes, dtypes and logical axes of the global batch, with no data."""
        ...

    def batch(self, step: int, rows: slice | None = None) -> HostBatch:
        """Returns the global batch of a step, or some of its rows."""
        ...

    @property
    def vocab_size(self) -> int:
        """The number of token ids, known with no data."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, ready to use; prepares the data at first use."""
        ...

    def prepare(self, progress: bool = True) -> PreparedData:
        """Does the disk work that must be done once; returns an account of it."""
        ...

    def held_out(self, num_batches: int | None = None) -> EvaluationInput:
        """Returns the held-out data in the same batches, all of it or evenly spread."""
        ...


class EvaluationInput(Protocol):
    """A fixed number of batches, always the same ones in the same order."""

    def spec(self) -> BatchSpec:
        """Returns shapes, dtypes and logical axes of the global batch, with no data."""
        ...

    @property
    def num_batches(self) -> int:
        """How many batches there are; prepares the data at first use."""
        ...

    def batch(self, index: int, rows: slice | None = None) -> HostBatch:
        """Returns one batch, or some of its rows; the last may end in rows of padding."""
        ...
