"""Inputs: batches of packed token sequences from a corpus and a tokenizer.

Building an input does no disk work. Its spec and vocabulary size come from the config alone, so a
model can be planned and compiled without data. The data is prepared by `prepare()` or at first use.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf, T_co, incidental
from dovetail.data.interfaces import (
    HELD_OUT,
    TRAIN,
    Corpus,
    EvaluationInput,
    PreparedData,
    Tokenizer,
)
from dovetail.data.order import SequentialOrder, ShuffledOrder, merged_ranges
from dovetail.data.packing import (
    ConcatenateAndSplit,
    DocumentPiece,
    PackedRows,
    Packing,
    PackingStatistics,
    TokenTransform,
)
from dovetail.data.rows import PreparedRows, RowFormat, SourceRows
from dovetail.data.sources import StandardLibrary
from dovetail.data.tokenizer import BytePairTokenizer
from dovetail.utils import plural

if TYPE_CHECKING:
    from dovetail.module import BatchSpec, HostBatch


_MAX_TOKENS = 2**31 - 1  # of a global batch; token positions are int32
# A language model gains little from a fifth epoch; fifty are surely a mistake.
_MANY_EPOCHS = 50


class PackedBatches(Protocol):
    """Batches whose rows hold pieces of documents: those of training, or of an evaluation."""

    def batch(self, step: int, rows: slice | None = None, /) -> HostBatch:
        """Returns a global batch, or some of its rows."""
        ...

    def documents(self, step: int, rows: slice | None = None, /) -> list[list[DocumentPiece]]:
        """Returns which documents of its source each row of a batch holds."""
        ...

    def sources(self, step: int, rows: slice | None = None, /) -> list[str]:
        """Returns the name of the source of each row of a batch."""
        ...


class PackedEvaluation(PackedBatches, EvaluationInput, Protocol):
    """The batches of a held-out split."""


class PackedInput(Component):
    """The base of inputs of packed token sequences: a tokenizer, rows of one length, a seed."""

    class Config(Component.Config[T_co], Generic[T_co]):
        """What all corpora share."""

        tokenizer: ConfigOf[Tokenizer] = BytePairTokenizer.Config()
        sequence_length: int = REQUIRED
        batch_size: int = REQUIRED
        """Rows of the global batch, of all hosts together."""
        packing: ConfigOf[Packing] = ConcatenateAndSplit.Config()
        transforms: tuple[ConfigOf[TokenTransform], ...] = ()
        """Changes of the tokens of each document in a row, one after the other."""
        seed: int = 0
        skips: tuple[tuple[int, int], ...] = incidental(())
        """Half-open ranges of batches to skip; a resumed run may have more of them."""

    def __init__(self, config: Config[Any], corpora: Mapping[str, Corpus]) -> None:
        super().__init__(config)
        for name, value in (
            ("sequence_length", config.sequence_length),
            ("batch_size", config.batch_size),
        ):
            if value < 1:
                raise ConfigError(f"{config.locate(name)}: expected 1 or more, got {value}.")
        if config.sequence_length * config.batch_size > _MAX_TOKENS:
            raise ConfigError(
                f"{config.locate('batch_size')}={config.batch_size} times "
                f"{config.locate('sequence_length')}={config.sequence_length} is more than "
                f"{_MAX_TOKENS:,} tokens per step, which no machine holds."
            )
        merged_ranges(config.skips)
        self._batch_size, self._seed, self._skips = config.batch_size, config.seed, config.skips
        form = RowFormat(
            config.tokenizer.build(),
            config.packing.build(),
            [transform.build() for transform in config.transforms],
            config.sequence_length,
        )
        self._rows = PreparedRows(corpora, form)

    def spec(self) -> BatchSpec:
        """Returns shapes, dtypes and logical axes of the global batch, with no data."""
        return self._rows.spec(self._batch_size)

    @property
    def vocab_size(self) -> int:
        """The number of token ids, known with no data."""
        return self._rows.tokenizer.vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, ready to use; prepares the data at first use."""
        self._rows.prepare()
        return self._rows.tokenizer

    def load_tokenizer(self, folder: Path) -> Tokenizer:
        """Returns the tokenizer, loaded from a folder; needs no corpus."""
        self._rows.tokenizer.load(folder)
        return self._rows.tokenizer

    def use_prepared(self, folder: Path) -> None:
        """Uses a token store by its folder from now on; the corpus is not read."""
        self._rows.use_prepared(folder)

    def check_data(self) -> None:
        """Raises a ConfigError if the corpus is missing or unreadable; writes no token store."""
        self._rows.check_corpora()

    def skip_batches(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Leaves out half-open ranges of batches from now on; later steps move up."""
        self._skips = tuple(merged_ranges((*self._skips, *ranges)))

    def packed_rows(self, split: str = TRAIN) -> dict[str, PackedRows]:
        """Returns the rows of a split of each source; prepares the data."""
        return {name: self._rows.source(name).packed(split) for name in self._rows.names}

    @abstractmethod
    def batch(self, step: int, rows: slice | None = None) -> HostBatch:
        """Returns the global batch of a step, or some of its rows."""

    @abstractmethod
    def documents(self, step: int, rows: slice | None = None) -> list[list[DocumentPiece]]:
        """Returns which documents of its source each row of a step's global batch holds."""

    @abstractmethod
    def sources(self, step: int, rows: slice | None = None) -> list[str]:
        """Returns the name of the source of each row of a step's global batch."""

    @abstractmethod
    def prepare(self, progress: bool = True) -> PreparedData:
        """Builds the token stores and indices that do not exist, and returns a summary."""

    @abstractmethod
    def batch_number(self, step: int) -> int:
        """Returns the number of the batch of a step; batches are numbered without skips."""

    @abstractmethod
    def held_out(self, num_batches: int | None = None) -> PackedEvaluation:
        """Returns the held-out split in batches of the same shape: all, or evenly spaced ones."""

    @abstractmethod
    def rows_taken(self, steps: int) -> dict[str, int]:
        """Returns how many rows each source gives to the first so many steps."""


class TokenInput(PackedInput):
    """Training batches of a tokenized corpus, in a shuffled order that the config determines."""

    class Config(PackedInput.Config["TokenInput"]):
        """Every field that the tokens of a step depend on."""

        corpus: ConfigOf[Corpus] = StandardLibrary.Config()
        split: Literal["train", "held_out"] = "train"

    def __init__(self, config: Config) -> None:
        corpus = config.corpus.build()
        super().__init__(config, {corpus.name: corpus})
        self._name, self._split = corpus.name, config.split

    def prepare(self, progress: bool = True) -> PreparedData:
        """Builds the token store and the packing's index if need be, and returns a summary."""
        prepared = self._rows.prepare(progress)
        self._source.packed(self._split, progress)
        return prepared

    def warnings(self, steps: int) -> list[str]:
        """Warns if this many steps repeat the data far too often; prepares the data."""
        tokens = self.prepare().splits[TRAIN].tokens
        (tokens_per_step,) = self.spec().items().values()
        rows = self.packing_statistics().rows  # not tokens: rows may have padding
        epochs = steps * self._batch_size / max(rows, 1)
        if not rows or (rows >= self._batch_size and epochs <= _MANY_EPOCHS):
            return []
        warning = (
            f"the data has {tokens:,} training tokens and a step takes {tokens_per_step:,}, so "
            f"{plural(steps, 'step')} {'is' if steps == 1 else 'are'} "
            f"{plural(round(epochs), 'epoch')}; the model will memorize the data. Add text, or use "
            "fewer steps or smaller batches."
        )
        return [warning]

    def batch(self, step: int, rows: slice | None = None) -> HostBatch:
        """Returns the global batch of a step, or some of its rows."""
        return self._source.take(self._split, self._order().examples(step, rows))

    def documents(self, step: int, rows: slice | None = None) -> list[list[DocumentPiece]]:
        """Returns which documents each row of a step's global batch holds, or some of its rows."""
        return self._source.packed(self._split).documents(self._order().examples(step, rows))

    def sources(self, step: int, rows: slice | None = None) -> list[str]:
        """Returns the name of the corpus for each row of a step's global batch."""
        return [self._name] * len(range(self._batch_size)[slice(None) if rows is None else rows])

    def rows_taken(self, steps: int) -> dict[str, int]:
        """Returns how many rows so many steps take, those of several epochs included."""
        return {self._name: steps * self._batch_size}

    def packing_statistics(self, split: str = TRAIN) -> PackingStatistics:
        """Returns how well the documents of a split fill its rows; prepares the data."""
        return self._source.packed(split).statistics()

    def batch_number(self, step: int) -> int:
        """Returns the number of the batch of a step; batches are numbered without skips."""
        return self._order().batch_number(step)

    @property
    def _source(self) -> SourceRows:
        return self._rows.source(self._name)

    def _order(self) -> ShuffledOrder:
        rows = self._source.count(self._split)
        return ShuffledOrder(rows, self._batch_size, self._seed, self._skips)

    def held_out(self, num_batches: int | None = None) -> TokenEvaluation:
        """Returns the held-out split in batches of the same shape: all, or evenly spaced ones."""
        return TokenEvaluation(self._rows, self._name, HELD_OUT, self._batch_size, num_batches)


class TokenEvaluation:
    """A fixed number of batches of a split, in order; the last one may end in rows of padding."""

    def __init__(
        self,
        rows: PreparedRows,
        corpus: str,
        split: str,
        batch_size: int,
        num_batches: int | None,
    ) -> None:
        if num_batches is not None and num_batches < 1:
            raise ConfigError(f"num_batches: expected at least 1 or None (all), got {num_batches}.")
        self._rows, self._name, self._split = rows, corpus, split
        self._batch_size, self._limit = batch_size, num_batches

    def spec(self) -> BatchSpec:
        """Returns shapes, dtypes and logical axes of a batch, with no data."""
        return self._rows.spec(self._batch_size)

    @property
    def num_batches(self) -> int:
        """How many batches there are; prepares the data at first use."""
        return self._order().num_batches

    def batch(self, index: int, rows: slice | None = None) -> HostBatch:
        """Returns one batch, or some of its rows."""
        return self._source.take(self._split, self._order().examples(index, rows))

    def documents(self, index: int, rows: slice | None = None) -> list[list[DocumentPiece]]:
        """Returns which documents each row of a batch holds; a row of padding has none."""
        return self._source.packed(self._split).documents(self._order().examples(index, rows))

    def sources(self, index: int, rows: slice | None = None) -> list[str]:
        """Returns the name of the corpus for each row of a batch."""
        return [self._name] * len(self._order().examples(index, rows))

    @property
    def _source(self) -> SourceRows:
        return self._rows.source(self._name)

    def _order(self) -> SequentialOrder:
        return SequentialOrder.of(self._source.count(self._split), self._batch_size, self._limit)
