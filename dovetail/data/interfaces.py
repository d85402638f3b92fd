"""The interfaces of corpora, tokenizers and inputs, and the records that they exchange.

Parents type their children by these interfaces, so a user's own corpus, tokenizer or input is a new
class and no edit. None of them imports JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dovetail.utils import format_bytes, format_count, format_table, plural

TRAIN = "train"
HELD_OUT = "held_out"
SPLITS = (TRAIN, HELD_OUT)


@dataclass(frozen=True)
class Document:
    """A text with a name that is the same in every run and on every machine.

    A document of a corpus that is tokenized already has token ids instead of a text.
    """

    name: str
    text: str = ""
    ids: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class EncodedDocument:
    """The token ids of a document, or of one of its examples.

    Attributes:
        ids: without end of text, unless the last one is that.
        weights: the loss weight of each token as a target, 0 or 1; None counts all of them.
    """

    ids: NDArray[np.int32]
    weights: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class BadRecord:
    """A record of a corpus that has no text: where it is, and what is wrong with it."""

    name: str
    problem: str


DocumentEncoder = Callable[[Document], Sequence[EncodedDocument] | BadRecord]
"""From a document to its examples, or to what is wrong with it."""


@dataclass(frozen=True)
class CorpusShard:
    """A piece of a corpus, read by one process at a time.

    Attributes:
        file: the name of the file in the corpus.
        start: where the piece begins, in the unit of the format: bytes, records or row groups.
        stop: where it ends; None for the end of the file.
        size: about how many bytes it has, for progress and for sharing out the work.
    """

    file: str
    start: int = 0
    stop: int | None = None
    size: int = 0


@dataclass(frozen=True)
class SplitSummary:
    """The size of a split."""

    documents: int
    bytes: int
    tokens: int


@dataclass(frozen=True)
class PreparedData:
    """A summary of prepared data."""

    folder: Path
    vocabulary: int
    splits: dict[str, SplitSummary]
    reused: bool
    """Whether it had been prepared before."""
    seconds: float
    report: dict[str, Any] = field(default_factory=dict)
    """What else was counted: duplicates, and records without text."""
    parts: dict[str, PreparedData] = field(default_factory=dict)
    """The summary of each corpus, where there are several."""

    @property
    def documents(self) -> int:
        """Documents in all splits."""
        return sum(split.documents for split in self.splits.values())

    @property
    def bytes(self) -> int:
        """Bytes of text in all splits."""
        return sum(split.bytes for split in self.splits.values())

    @property
    def tokens(self) -> int:
        """Tokens in all splits, with the end-of-text token of every document."""
        return sum(split.tokens for split in self.splits.values())

    def text(self) -> str:
        """Returns the summary as text, with what was skipped."""
        rows = [
            (
                label,
                plural(split.documents, "document"),
                format_bytes(split.bytes),
                f"{format_count(split.tokens)} tokens",
            )
            for name, part in (*self.parts.items(), ("", self))
            for label, split in part.labelled_splits(name)
        ]
        lines = [format_table(rows, align="<>>>")]
        lines += [line for name, part in self.parts.items() for line in part.remarks(f"{name}: ")]
        lines += self.remarks()
        where = self.folder.parent if self.parts else self.folder
        lines.append(f"{self.vocabulary} tokens in the vocabulary; in {where}")
        return "\n".join(lines)

    def labelled_splits(self, corpus: str) -> list[tuple[str, SplitSummary]]:
        """Returns the splits with their names, after that of a corpus."""
        return [(f"{corpus} {name}".strip(), split) for name, split in self.splits.items()]

    def remarks(self, begin: str = "") -> list[str]:
        """Returns lines about what was skipped or repeated."""
        lines = []
        if count := self.report.get("duplicates"):
            lines.append(f"{begin}{plural(count, 'document')} with the text of another one")
        for problem, count in self.report.get("problems", {}).items():
            lines.append(f"{begin}{plural(count, 'record')} skipped: {problem}")
        return lines


class Corpus(Protocol):
    """A collection of documents."""

    @property
    def name(self) -> str:
        """A short name; the token store's folder begins with it."""
        ...

    def fingerprint(self) -> str:
        """Returns a hash of the names and contents of all documents."""
        ...

    def documents(self) -> Iterator[Document]:
        """Yields the documents, always in the same order; an unreadable one is a ConfigError."""
        ...


@runtime_checkable
class ShardedCorpus(Corpus, Protocol):
    """A corpus in independent pieces, so that several processes can read it, and start again.

    `documents()` yields the documents of all shards, in their order. An attribute `max_bad` is the
    share of bad records that are skipped; without it, none is.
    """

    def shards(self) -> Sequence[CorpusShard]:
        """Returns the pieces, always the same and in the same order; reads no documents."""
        ...

    def read(self, shard: CorpusShard) -> Iterator[Document | BadRecord]:
        """Yields the documents of a piece, and the records that have none."""
        ...


@runtime_checkable
class HasEncoder(Corpus, Protocol):
    """A corpus that makes tokens and loss weights of its documents itself, as of conversations."""

    def encoder(self, tokenizer: Tokenizer) -> DocumentEncoder:
        """Returns what encodes a document; a ConfigError if that cannot work for any document.

        It is also called to check that before any work, with a tokenizer that may be untrained.
        """
        ...

    def encoder_fingerprint(self, tokenizer: Tokenizer) -> str:
        """Returns a hash of what decides the tokens, beside the corpus and the tokenizer."""
        ...


class Tokenizer(Protocol):
    """Converts text to token ids and back. Its vocabulary size is known before it is trained.

    One whose `fit` learns nothing has the attribute `learns = False`: then the tokens of a corpus
    do not depend on other corpora of a mixture.
    """

    @property
    def name(self) -> str:
        """A short name; it is part of the name of the token store's folder."""
        ...

    def fingerprint(self) -> str:
        """Returns a hash of everything that decides how a given corpus is tokenized."""
        ...

    @property
    def vocab_size(self) -> int:
        """The number of token ids that a model must support; some may be unused."""
        ...

    @property
    def end_of_text(self) -> int:
        """The id that ends every document."""
        ...

    @property
    def token_bytes(self) -> NDArray[np.int32]:
        """The number of bytes that each id decodes to, [vocab_size]; 0 for end of text."""
        ...

    def encode(self, text: str) -> NDArray[np.int32]:
        """Returns the ids of a text, without end of text."""
        ...

    def encode_all(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Returns the ids of several texts; may be faster than one by one."""
        ...

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes of the ids, which may end in an incomplete character."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of the ids; invalid UTF-8 becomes replacement characters."""
        ...

    def fit(self, texts: Iterable[str]) -> None:
        """Trains the tokenizer on the training split."""
        ...

    def save(self, folder: Path) -> None:
        """Writes the trained tokenizer to a folder."""
        ...

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""
        ...


@runtime_checkable
class HasOffsets(Tokenizer, Protocol):
    """A tokenizer that knows of which characters each token is, as loss masks need."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The ids of the tokens that no ordinary text may become, such as `<|im_end|>`."""
        ...

    def encode_with_offsets(
        self, text: str, literal: bool = False
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the ids of a text, and the range of characters of each, [tokens, 2].

        Special tokens in the text are encoded as such, or as ordinary text if `literal`. None are
        added.
        """
        ...


def stop_tokens_of(tokenizer: Tokenizer) -> list[int]:
    """Returns the ids that end generation: its `stop_tokens`, such as an end of turn, if any."""
    return list(getattr(tokenizer, "stop_tokens", [tokenizer.end_of_text]))


class Input(Protocol):
    """Training batches without end: a pure function of the config and the step.

    A batch is any registered dataclass whose arrays share their first axis, the rows; `TokenBatch`
    is one of them. Further protocols below are capabilities that some inputs have.
    """

    def spec(self) -> Any:
        """Returns the global batch with an `ArraySpec` for each array; needs no data."""
        ...

    def batch(self, step: int, rows: slice | None = None) -> Any:
        """Returns the global batch of a step, or some of its rows, as NumPy arrays."""
        ...


@runtime_checkable
class HasVocabulary(Protocol):
    """An input of token ids."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids, known with no data."""
        ...


class HasTokenizer(Protocol):
    """An input of text; see `has_tokenizer`."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, ready to use; prepares the data at first use."""
        ...

    def load_tokenizer(self, folder: Path) -> Tokenizer:
        """Returns the tokenizer, loaded from a folder; needs no corpus."""
        ...


def has_tokenizer(source: object) -> TypeGuard[HasTokenizer]:
    """Says whether an input has a tokenizer, without reading it: a property prepares the data."""
    is_there = hasattr(type(source), "tokenizer") or "tokenizer" in vars(source)
    return is_there and hasattr(source, "load_tokenizer")


@runtime_checkable
class HasPreparedData(Protocol):
    """An input whose data takes disk work that is done once."""

    def prepare(self, progress: bool = True) -> PreparedData:
        """Does the disk work, unless it has been done, and returns a summary."""
        ...

    def use_prepared(self, folder: Path) -> None:
        """Uses the prepared data of a folder from now on, instead of the corpus."""
        ...

    def check_data(self) -> None:
        """Raises a ConfigError if the data is missing; prepares nothing."""
        ...

    def warnings(self, steps: int) -> list[str]:
        """Returns what is suspicious about training on the data for this many steps."""
        ...


@runtime_checkable
class CanSkipBatches(Protocol):
    """An input that can leave out batches for ever: after a loss spike, for example."""

    def batch_number(self, step: int) -> int:
        """Returns the number of the batch of a step; batches are numbered without skips."""
        ...

    def skip_batches(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Leaves out half-open ranges of batches from now on; later steps move up."""
        ...


@runtime_checkable
class CanChangeData(Protocol):
    """An input whose data may change in the middle of a run, from some batch on."""

    def check_change(self, before: Any, step: int) -> None:
        """Raises a ConfigError unless the batches of all earlier steps are those of a config.

        Args:
            before: the config of the input until now.
            step: the step that the run continues from.
        """
        ...

    def keep_tokenizer(self, folder: Path) -> None:
        """Uses the tokenizer of a folder from now on; none is trained."""
        ...


@runtime_checkable
class HasHeldOut(Protocol):
    """An input with a held-out split."""

    def held_out(self, num_batches: int | None = None) -> EvaluationInput:
        """Returns the held-out split in batches of the same shape: all, or evenly spaced ones."""
        ...


@runtime_checkable
class HasHeldOutSources(Protocol):
    """An input of several sources, each with a held-out split."""

    def held_out_by_source(self, num_batches: int | None = None) -> Mapping[str, EvaluationInput]:
        """Returns the held-out split of each source by its name."""
        ...


class EvaluationInput(Protocol):
    """A fixed number of batches, always the same ones in the same order."""

    def spec(self) -> Any:
        """Returns the global batch with an `ArraySpec` for each array; needs no data."""
        ...

    @property
    def num_batches(self) -> int:
        """How many batches there are; prepares the data at first use."""
        ...

    def batch(self, index: int, rows: slice | None = None) -> Any:
        """Returns a batch, or some of its rows; the last one may end in rows of padding."""
        ...
