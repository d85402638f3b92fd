"""The order of a mixture: which source and which of its rows, as a pure function of the step.

The rows of all batches are numbered. They come in blocks, and each block takes an exact number of
rows from each source, its quota, in a shuffled sequence. A source gives its own rows in epochs that
are shuffled anew. Nothing is stored: how many rows a source has given before a block is the sum of
quotas, so a run resumes at any step at once, on any number of hosts.

A stage has weights of its own from one step on. Its blocks start with it, so the last block of the
stage before may be cut.

N rows of a batch, K rows of a block, S sources.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.order import batch_number, merged_ranges, permute, shuffle_keys


@dataclass(frozen=True)
class StageQuotas:
    """The rows that each source gives to a block, from a batch on.

    Attributes:
        start: the first batch of the stage.
        quotas: by source; the sum is the length of a block.
    """

    start: int
    quotas: tuple[int, ...]


@dataclass(frozen=True)
class MixtureOrder:
    """An endless order over the rows of several sources.

    Attributes:
        names: of the sources; the order within a source depends on its own name alone.
        sizes: how many rows each source has.
        stages: the quotas, by their start; the first starts at batch 0.
        batch_size: rows of a global batch.
        seed: of all shuffling.
        skips: ranges of batches that are left out, as in `ShuffledOrder`.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    stages: tuple[StageQuotas, ...]
    batch_size: int
    seed: int = 0
    skips: tuple[tuple[int, int], ...] = ()

    def batch_number(self, step: int) -> int:
        """Returns the number of a step's batch: the step plus the batches skipped before it."""
        return batch_number(step, self.skips)

    def rows(
        self, step: int, rows: slice | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns source and row in that source, for each row of a step's global batch."""
        own = np.arange(self.batch_size)[slice(None) if rows is None else rows]
        numbers_N = self.batch_number(step) * self.batch_size + own
        sources_N, ranks_N = self._ranks(numbers_N)
        rows_N = np.empty_like(ranks_N)
        for source, (name, size) in enumerate(zip(self.names, self.sizes, strict=True)):
            own_N = np.flatnonzero(sources_N == source)
            epochs, positions = np.divmod(ranks_N[own_N], max(size, 1))
            keys = shuffle_keys(self.seed ^ _hash(name), epochs)
            rows_N[own_N] = permute(positions, max(size, 1), keys)
        return sources_N, rows_N

    def taken(self, batches: int) -> NDArray[np.int64]:
        """Returns how many rows each source gives to the first so many batches."""
        end = batches * self.batch_size
        stage = int(np.searchsorted(self._starts, end, side="right")) - 1
        return self._before[stage] + self._within(stage, end)

    def taken_by_steps(self, steps: int) -> NDArray[np.int64]:
        """Returns how many rows each source gives to the first so many steps, without skips."""
        end = self.batch_number(steps - 1) + 1 if steps else 0
        taken = self.taken(end)
        for first, stop in merged_ranges(self.skips):
            if first < end:
                taken = taken - (self.taken(stop) - self.taken(first))
        return taken

    def _ranks(self, numbers_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the source of each row of the run, and how many that source gave before it."""
        sources_N = np.empty_like(numbers_N)
        ranks_N = np.empty_like(numbers_N)
        stages_N = np.searchsorted(self._starts, numbers_N, side="right") - 1
        for stage in np.unique(stages_N).tolist():
            start, length = int(self._starts[stage]), sum(self.stages[stage].quotas)
            blocks_N = (numbers_N - start) // length
            for block in np.unique(blocks_N[stages_N == stage]).tolist():
                own_N = np.flatnonzero((stages_N == stage) & (blocks_N == block))
                sources_K, ranks_K = self._block(stage, block)
                inside_N = numbers_N[own_N] - start - block * length
                sources_N[own_N], ranks_N[own_N] = sources_K[inside_N], ranks_K[inside_N]
        return sources_N, ranks_N

    def _block(self, stage: int, block: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns source and rank of each row of a block."""
        quotas_S = np.array(self.stages[stage].quotas)
        sources_K = self._sources(stage, block, int(quotas_S.sum()))
        # A source's rows come in their order, so that a block that is cut skips none of them.
        ranks_K = np.empty_like(sources_K)
        before_S = self._before[stage] + block * quotas_S
        for source in range(len(quotas_S)):
            own_K = np.flatnonzero(sources_K == source)
            ranks_K[own_K] = before_S[source] + np.arange(len(own_K))
        return sources_K, ranks_K

    @functools.cached_property
    def _starts(self) -> NDArray[np.int64]:
        """The first row of each stage."""
        return np.array([stage.start * self.batch_size for stage in self.stages])

    @functools.cached_property
    def _before(self) -> list[NDArray[np.int64]]:
        """How many rows each source has given before each stage."""
        before = [np.zeros(len(self.names), np.int64)]
        for stage, end in enumerate(self._starts[1:].tolist()):
            before.append(before[-1] + self._within(stage, end))
        return before

    def _within(self, stage: int, end: int) -> NDArray[np.int64]:
        """Returns how many rows each source gives in a stage, up to a row of the run."""
        quotas_S = np.array(self.stages[stage].quotas)
        blocks, rest = divmod(end - int(self._starts[stage]), int(quotas_S.sum()))
        sources = self._sources(stage, blocks, rest)
        return blocks * quotas_S + np.bincount(sources, minlength=len(quotas_S))

    def _sources(self, stage: int, block: int, count: int) -> NDArray[np.int64]:
        """Returns the sources of the first rows of a block."""
        ends_S = np.cumsum(self.stages[stage].quotas)
        length = int(ends_S[-1])
        first = int(self._starts[stage]) + block * length
        key = shuffle_keys(self.seed ^ _hash("blocks"), np.full(1, first))
        return np.searchsorted(ends_S, permute(np.arange(count), length, key), side="right")


def quotas(weights: Mapping[str, float], block: int) -> tuple[int, ...]:
    """Returns how many of `block` rows each source gives, by largest remainders.

    A weight may be too small for a row, as on a ramp; `check_weights` refuses that.

    Raises:
        ConfigError: for weights that are negative or all zero.
    """
    for name, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"weight of {name}: expected 0 or more, got {weight}.")
    total = sum(weights.values())
    if not total:
        raise ConfigError(f"the weights of {', '.join(weights)} are all 0; one must be more.")
    exact = {name: weight / total * block for name, weight in weights.items()}
    found = {name: int(share) for name, share in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (found[name] - exact[name], name))
    for name in by_remainder[: block - sum(found.values())]:
        found[name] += 1
    return tuple(found.values())


def check_weights(weights: Mapping[str, float], block: int) -> None:
    """Raises a ConfigError for weights that cannot be, or are too small for a row of a block."""
    total = sum(weights.values())
    for (name, weight), quota in zip(weights.items(), quotas(weights, block), strict=True):
        if weight and not quota:
            raise ConfigError(
                f"weight of {name}: {weight / total:.3g} of {block} rows is less than one row. "
                f"Give it more, or set block to {int(np.ceil(total / weight))} rows or more."
            )


def temperature_weights(sizes: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Returns weights in proportion to size ** (1 / temperature).

    1 is in proportion to the sizes; more makes the sources more equal
    (https://arxiv.org/abs/1910.10683, section 3.5.2).
    """
    largest = max(sizes.values())
    return {name: (size / largest) ** (1 / temperature) for name, size in sizes.items()}


def check_epochs(order: MixtureOrder, batches: int, limits: Sequence[float | None]) -> None:
    """Raises a ConfigError for a source that so many batches repeat more often than it may be."""
    taken = order.taken(batches)
    for name, size, rows, limit in zip(order.names, order.sizes, taken, limits, strict=True):
        if limit is not None and rows > limit * size:
            raise ConfigError(
                f"source {name}: {batches:,} batches take {rows:,} rows of its {size:,}, which is "
                f"{rows / size:.2f} epochs, and it may be repeated for {limit:g}. Lower its "
                "weight, use fewer steps, add text, or raise its epochs."
            )


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
