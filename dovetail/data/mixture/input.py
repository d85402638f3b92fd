"""MixtureInput: batches with rows from several corpora, in shares that may change in stages."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf
from dovetail.data.input import PackedInput, TokenEvaluation
from dovetail.data.interfaces import HELD_OUT, TRAIN, Corpus, PreparedData
from dovetail.data.mixture.changes import check_same_batches
from dovetail.data.mixture.order import (
    MixtureOrder,
    StageQuotas,
    check_epochs,
    check_weights,
    quotas,
    temperature_weights,
)
from dovetail.data.order import batch_number
from dovetail.data.packing import DocumentPiece, PackingStatistics
from dovetail.utils import plural

if TYPE_CHECKING:
    from dovetail.module import BatchSpec, HostBatch

_MANY_EPOCHS = 50
_RAMP_STEPS = 32


class MixtureSource(Component):
    """A corpus of a mixture."""

    class Config(Component.Config["MixtureSource"]):
        """The corpus, and how much of it is used."""

        corpus: ConfigOf[Corpus] = REQUIRED
        weight: float = 1.0
        """Its share of the rows, relative to those of the others, until a stage changes it."""
        epochs: float | None = None
        """How often it may be repeated; None sets no limit."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.corpus, self.weight, self.epochs = config.corpus.build(), config.weight, config.epochs


class MixtureStage(Component):
    """Weights from one step on, such as those of mid-training or annealing."""

    class Config(Component.Config["MixtureStage"]):
        """The weights of all sources that the stage uses; it uses no other."""

        start: int = REQUIRED
        """The number of the stage's first batch."""
        weights: dict[str, float] = REQUIRED
        ramp: int = 0
        """For so many batches the weights change, in equal steps, from those before."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.start < 1:
            raise ConfigError(f"{config.locate('start')}: expected 1 or more, got {config.start}.")
        if config.ramp < 0:
            raise ConfigError(f"{config.locate('ramp')}: expected 0 or more, got {config.ramp}.")
        self.start, self.ramp, self.weights = config.start, config.ramp, dict(config.weights)


class MixtureInput(PackedInput):
    """Training batches of several corpora with one tokenizer.

    Each block of `block` rows has an exact number of rows from each source. The order is a pure
    function of seed and step.
    """

    class Config(PackedInput.Config["MixtureInput"]):
        """The sources by name, and their shares."""

        sources: dict[str, MixtureSource.Config] = REQUIRED
        stages: dict[str, MixtureStage.Config] = {}
        """Later stages, by any name; their starts decide their order."""
        temperature: float | None = None
        """Multiplies each weight by the source's rows ** (1 / temperature): 1 is by size."""
        block: int = 1024
        """Rows in which the shares are exact."""

    def __init__(self, config: Config) -> None:
        self._sources = {name: source.build() for name, source in config.sources.items()}
        _check(config, self._sources)
        corpora = {name: source.corpus for name, source in self._sources.items()}
        super().__init__(config, corpora)
        stages = {name: stage.build() for name, stage in config.stages.items()}
        self._stages = sorted(stages.values(), key=lambda stage: stage.start)
        self._block, self._temperature = config.block, config.temperature
        if config.temperature is not None and not config.temperature > 0:
            raise ConfigError(f"{config.locate('temperature')}: expected more than 0.")
        weights = dict(self.stage_weights())  # fails before any data is prepared
        if config.temperature is None:  # else they depend on the sizes of the sources
            for start in (0, *(stage.start + stage.ramp for stage in self._stages)):
                check_weights(weights[start], self._block)

    def prepare(self, progress: bool = True) -> PreparedData:
        """Builds the token stores and indices that do not exist, and returns a summary."""
        prepared = self._rows.prepare(progress)
        for name in self._sources:
            self._rows.source(name).packed(TRAIN, progress)
        return prepared

    def batch(self, step: int, rows: slice | None = None) -> HostBatch:
        """Returns the global batch of a step, or some of its rows."""
        import jax  # not needed to prepare data

        sources_B, rows_B = self.order.rows(step, rows)
        parts, places = [], []
        for index, name in enumerate(self._sources):
            own = np.flatnonzero(sources_B == index)
            if len(own):
                parts.append(self._rows.source(name).take(TRAIN, rows_B[own]))
                places.append(own)
        back = np.argsort(np.concatenate(places))
        joined: HostBatch = jax.tree.map(lambda *each: np.concatenate(each)[back], *parts)
        return joined

    def documents(self, step: int, rows: slice | None = None) -> list[list[DocumentPiece]]:
        """Returns which documents of its source each row of a batch holds."""
        sources_B, rows_B = self.order.rows(step, rows)
        names = list(self._sources)
        return [
            self._rows.source(names[source]).packed(TRAIN).documents(np.array([row]))[0]
            for source, row in zip(sources_B.tolist(), rows_B.tolist(), strict=True)
        ]

    def sources(self, step: int, rows: slice | None = None) -> list[str]:
        """Returns the name of the source of each row of a batch."""
        names = list(self._sources)
        return [names[index] for index in self.order.rows(step, rows)[0].tolist()]

    def rows_taken(self, steps: int) -> dict[str, int]:
        """Returns how many rows each source gives to the first so many steps, without skips."""
        return dict(zip(self._sources, self.order.taken_by_steps(steps).tolist(), strict=True))

    def shares(self) -> list[tuple[int, dict[str, float]]]:
        """Returns the share of the rows of each source, with the batch from which it holds."""
        return [
            (
                stage.start,
                {n: q / self._block for n, q in zip(self._sources, stage.quotas, strict=True)},
            )
            for stage in self.order.stages
        ]

    @property
    def block(self) -> int:
        """The number of rows in which the shares are exact."""
        return self._block

    def packing_statistics(self, split: str = TRAIN) -> dict[str, PackingStatistics]:
        """Returns how well the documents of each source fill its rows."""
        return {name: self._rows.source(name).packed(split).statistics() for name in self._sources}

    def warnings(self, steps: int) -> list[str]:
        """Refuses sources that are repeated too often; warns of those repeated very often."""
        limits = [source.epochs for source in self._sources.values()]
        check_epochs(self.order, steps, limits)
        epochs = self.order.taken(steps) / np.array(self.order.sizes)
        return [
            f"source {name}: {plural(steps, 'step')} repeat it {count:.0f} times; the model will "
            "memorize it. Add text, or lower its weight."
            for name, count, limit in zip(self._sources, epochs, limits, strict=True)
            if limit is None and count > _MANY_EPOCHS
        ]

    def batch_number(self, step: int) -> int:
        """Returns the number of the batch of a step; batches are numbered without skips."""
        return batch_number(step, tuple(self._skips))  # with no data

    def skip_batches(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Leaves out half-open ranges of batches from now on; later steps move up."""
        super().skip_batches(ranges)
        self.__dict__.pop("order", None)

    @functools.cached_property
    def order(self) -> MixtureOrder:
        """The order of the rows; prepares the data."""
        sizes = {name: self._rows.source(name).count(TRAIN) for name in self._sources}
        by_size = dict.fromkeys(sizes, 1.0)
        if self._temperature is not None:
            by_size = temperature_weights(sizes, self._temperature)
        stages = [
            StageQuotas(start, quotas({n: w * by_size[n] for n, w in weights.items()}, self._block))
            for start, weights in self.stage_weights()
        ]
        names, counts = tuple(sizes), tuple(sizes.values())
        return MixtureOrder(
            names, counts, tuple(stages), self._batch_size, self._seed, tuple(self._skips)
        )

    def held_out(self, num_batches: int | None = None) -> MixtureEvaluation:
        """Returns the held-out splits of all sources, one after the other."""
        return MixtureEvaluation(self.held_out_by_source(num_batches))

    def held_out_by_source(self, num_batches: int | None = None) -> dict[str, TokenEvaluation]:
        """Returns the held-out split of each source: all, or so many evenly spaced batches."""
        return {
            name: TokenEvaluation(self._rows, name, HELD_OUT, self._batch_size, num_batches)
            for name in self._sources
        }

    def keep_tokenizer(self, folder: Path) -> None:
        """Uses the tokenizer of a folder from now on; none is trained."""
        self._rows.keep_tokenizer(folder)

    def check_change(self, before: Any, step: int) -> None:
        """Raises a ConfigError unless the batches of all earlier steps are those of a config."""
        check_same_batches(before, self.config, self.batch_number(step))

    def stage_weights(self) -> list[tuple[int, dict[str, float]]]:
        """Returns the weights of all sources, with the batch from which they hold."""
        current = {name: source.weight for name, source in self._sources.items()}
        found = [(0, current)]
        for stage in self._stages:
            if unknown := sorted(set(stage.weights) - set(current)):
                raise ConfigError(
                    f"{stage.config.locate('weights')}: there is no source {unknown[0]!r}. The "
                    f"sources are {', '.join(current)}."
                )
            if stage.start <= found[-1][0]:
                raise ConfigError(
                    f"{stage.config.locate('start')}: the stage before is in force until batch "
                    f"{found[-1][0]}, so a later start is expected, got {stage.start}."
                )
            after = {name: stage.weights.get(name, 0.0) for name in current}
            steps = min(stage.ramp, _RAMP_STEPS)
            for number in range(steps):
                mixed = _between(current, after, number / steps)
                found.append((stage.start + stage.ramp * number // steps, mixed))
            found.append((stage.start + stage.ramp, after))
            current = after
        return found


def _between(
    before: Mapping[str, float], after: Mapping[str, float], share: float
) -> dict[str, float]:
    """Returns the weights on the way from one stage to the next, as shares of the rows."""
    sums = sum(before.values()) or 1.0, sum(after.values()) or 1.0
    return {
        name: (1 - share) * before[name] / sums[0] + share * after[name] / sums[1]
        for name in before
    }


def _check(config: MixtureInput.Config, sources: Mapping[str, MixtureSource]) -> None:
    if not sources:
        raise ConfigError(f"{config.locate('sources')}: a mixture has at least one source.")
    if config.block < 1:
        raise ConfigError(f"{config.locate('block')}: expected 1 or more, got {config.block}.")


class MixtureEvaluation:
    """The held-out batches of all sources, one source after the other."""

    def __init__(self, parts: Mapping[str, TokenEvaluation]) -> None:
        self._parts = list(parts.values())

    def spec(self) -> BatchSpec:
        """Returns shapes, dtypes and logical axes of a batch, with no data."""
        return self._parts[0].spec()

    @property
    def num_batches(self) -> int:
        """How many batches there are; prepares the data at first use."""
        return sum(part.num_batches for part in self._parts)

    def batch(self, index: int, rows: slice | None = None) -> HostBatch:
        """Returns one batch, or some of its rows."""
        part, own = self._part(index)
        return part.batch(own, rows)

    def documents(self, index: int, rows: slice | None = None) -> list[list[DocumentPiece]]:
        """Returns which documents of its source each row of a batch holds."""
        part, own = self._part(index)
        return part.documents(own, rows)

    def sources(self, index: int, rows: slice | None = None) -> list[str]:
        """Returns the name of the source of each row of a batch."""
        part, own = self._part(index)
        return part.sources(own, rows)

    def _part(self, index: int) -> tuple[TokenEvaluation, int]:
        """Returns the source of a batch, and the number of the batch among those of the source."""
        own = index
        for part in self._parts:
            if own < part.num_batches:
                return part, own
            own -= part.num_batches
        raise IndexError(f"batch {index} is beyond the last one")
