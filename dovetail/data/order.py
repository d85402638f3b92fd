"""The data order: a pure function of seed, step and recorded skips.

There is no state to save and no list to shuffle. A keyed permutation maps position i of epoch e to
an example in constant time, so a run resumes at any step, and every host computes its own rows of
the global batch without communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError

PADDING = -1
"""The example index of a padding row."""

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64 - 1
# Eight rounds of a keyed hash: with fewer, the order is biased in the smallest domains.
_ROUND_CONSTANTS = np.array([[number * _GOLDEN & _WORD] for number in range(8)], np.uint64)
_MIN_BITS = 6


@dataclass(frozen=True)
class ShuffledOrder:
    """Endless epochs over the examples, each shuffled anew.

    `skips` are half-open ranges of batches that are skipped; batches are numbered from 0 as they
    come without skips. After a loss spike at batch 1000, (995, 1005) skips ten batches permanently.
    """

    num_examples: int
    batch_size: int
    seed: int = 0
    skips: tuple[tuple[int, int], ...] = ()

    def batch_number(self, step: int) -> int:
        """Returns the number of a step's batch: the step plus the batches skipped before it."""
        return batch_number(step, self.skips)

    def examples(self, step: int, rows: slice | None = None) -> NDArray[np.int64]:
        """Returns the examples of a step's global batch, or of some of its rows."""
        positions = (
            self.batch_number(step) * self.batch_size + np.arange(self.batch_size)[_all(rows)]
        )
        epochs, positions = np.divmod(positions, self.num_examples)
        return permute(positions, self.num_examples, shuffle_keys(self.seed, epochs))


@dataclass(frozen=True)
class SequentialOrder:
    """A fixed number of batches over the examples, in order: all of them, or evenly spaced ones."""

    num_examples: int
    batch_size: int
    num_batches: int

    @classmethod
    def of(cls, num_examples: int, batch_size: int, num_batches: int | None) -> SequentialOrder:
        """Makes at most `num_batches` (None: no limit), and no more than hold all examples."""
        all_batches = -(-num_examples // batch_size)
        wanted = all_batches if num_batches is None else min(num_batches, all_batches)
        return cls(num_examples, batch_size, wanted)

    def examples(self, index: int, rows: slice | None = None) -> NDArray[np.int64]:
        """Returns the examples of a batch; rows beyond the last example are PADDING."""
        if not 0 <= index < self.num_batches:
            raise IndexError(f"batch {index} of {self.num_batches}")
        positions = index * self.batch_size + np.arange(self.batch_size, dtype=np.int64)[_all(rows)]
        total_rows = self.num_batches * self.batch_size
        if total_rows < self.num_examples:
            # Evenly spaced: the first documents in alphabetical order are not representative.
            return positions * self.num_examples // total_rows
        return np.where(positions < self.num_examples, positions, PADDING)


def batch_number(step: int, skips: tuple[tuple[int, int], ...]) -> int:
    """Returns the number of a step's batch: the step plus the batches skipped before it."""
    number = step
    for start, stop in merged_ranges(skips):
        if number < start:
            break
        number += stop - start
    return number


def merged_ranges(ranges: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Returns the sorted ranges, with touching and overlapping ones merged."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if not 0 <= start < stop:
            raise ConfigError(
                f"skips: expected ranges (first, end) with 0 <= first < end, got ({start}, {stop})."
            )
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def permute(positions: NDArray[np.int64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Permutes positions in [0, size), each with its own key.

    A Feistel network permutes the next larger power of two. A value outside [0, size) is permuted
    again until it is inside, which keeps the map one to one (cycle walking; Black and Rogaway,
    "Ciphers with Arbitrary Finite Domains", 2002).
    """
    bits = max(_MIN_BITS, (size - 1).bit_length())
    values = positions.astype(np.uint64)
    round_keys = _mix(np.broadcast_to(keys, values.shape) + _ROUND_CONSTANTS)
    values = _feistel(values, round_keys, bits)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        values[outside] = _feistel(values[outside], round_keys[:, outside], bits)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def draws(seed: int, count: int, *keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns random numbers in [0, 1) that the seed and the keys decide: [count, keys]."""
    words = _mix(np.full(keys[0].shape, seed + _GOLDEN & _WORD, np.uint64))
    for key in keys:
        words = _mix(words + key.astype(np.uint64))
    drawn = _mix(words + _mix(np.arange(1, count + 1, dtype=np.uint64))[:, None])
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _feistel(
    values: NDArray[np.uint64], round_keys: NDArray[np.uint64], bits: int
) -> NDArray[np.uint64]:
    """Permutes [0, 2**bits): each half in turn is XORed with a hash of the other."""
    low_bits = bits // 2
    shift = np.uint64(low_bits)
    low_mask, high_mask = np.uint64(2**low_bits - 1), np.uint64(2 ** (bits - low_bits) - 1)
    high, low = values >> shift, values & low_mask
    for first, second in zip(round_keys[0::2], round_keys[1::2], strict=True):
        high = high ^ (_mix(low + first) & high_mask)
        low = low ^ (_mix(high + second) & low_mask)
    return (high << shift) | low


def shuffle_keys(seed: int, epochs: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns the key of `permute` for each epoch."""
    word = np.full(1, seed + _GOLDEN & _WORD, np.uint64)
    return _mix(_mix(word) + epochs.astype(np.uint64))


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes 64-bit words one to one (the finalizer of SplitMix64); arithmetic wraps around."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _all(rows: slice | None) -> slice:
    return slice(None) if rows is None else rows
