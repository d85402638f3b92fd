"""A baseline: the bits per byte of an interpolated byte trigram on the held-out split.

It interpolates the trigram, bigram and unigram frequencies of bytes, and the uniform distribution.
A language model that has learned anything ends clearly below it in bits per byte.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.interfaces import HELD_OUT, TRAIN, HasPreparedData, HasTokenizer, Tokenizer
from dovetail.data.store import DiskFullError, TokenSplit, TokenStore, write_file

_FILE = "trigram-1.json"
_END = 256  # end of document; two of them also precede its first byte
_SYMBOLS = 257
_MOST_TOKENS = 2**27  # the trigram counts have converged long before
_PORTION = 2**22  # symbols counted at a time, to bound memory
_FIT_SYMBOLS = 2**19
_FIT_ITERATIONS = 60


class TextInput(HasPreparedData, HasTokenizer, Protocol):
    """An input of text from prepared data."""


def trigram_bits_per_byte(source: TextInput) -> float:
    """Returns the bits per byte of a trigram of the training split on the held-out split.

    The interpolation weights are fitted on a tenth of the training split that is left out of the
    counts at first; then all of it is counted. The end of each document is predicted, too. The
    result is cached with the prepared data.
    """
    folder = source.prepare().folder
    try:
        return float(json.loads((folder / _FILE).read_text())["bits_per_byte"])
    except (OSError, ValueError, KeyError, TypeError):
        result = _compute(folder, source.tokenizer)
    # Without a writable cache, the result is computed again next time.
    with contextlib.suppress(ConfigError, DiskFullError):
        write_file(folder / _FILE, json.dumps({"bits_per_byte": result}) + "\n")
    return result


def _compute(folder: Path, tokenizer: Tokenizer) -> float:
    store = TokenStore(folder)
    training = _symbols(store.split(TRAIN), tokenizer)
    held_out = _symbols(store.split(HELD_OUT), tokenizer)
    num_bytes = np.count_nonzero(held_out != _END)
    if not num_bytes:
        raise ConfigError(
            f"trigram: the held-out split in {folder} is empty. "
            "Use a corpus of two documents or more."
        )
    return _bits(training, held_out) / num_bytes


def _bits(training: NDArray[np.uint16], held_out: NDArray[np.uint16]) -> float:
    """Returns the bits that a trigram of the training symbols needs for the held-out symbols."""
    cut = len(training) - len(training) // 10
    counts = _Counts.zero()
    counts.add(training[:cut])
    weights = _fit(counts.probabilities(training[cut:][:_FIT_SYMBOLS]))
    # Two symbols overlap, so that no trigram is lost at the boundary.
    counts.add(training[cut - 2 :])
    portions = _overlapping(held_out)
    return -sum(float(np.log2(weights @ counts.probabilities(part)).sum()) for part in portions)


@dataclass
class _Counts:
    """The trigram counts; bigram and unigram counts are sums of them."""

    trigrams: NDArray[np.int64]

    @classmethod
    def zero(cls) -> _Counts:
        return cls(np.zeros((_SYMBOLS, _SYMBOLS, _SYMBOLS), np.int64))

    def add(self, symbols: NDArray[np.uint16]) -> None:
        for portion in _overlapping(symbols):
            first, second, third = _windows(portion)
            flat = (first * _SYMBOLS + second) * _SYMBOLS + third
            counted = np.bincount(flat, minlength=_SYMBOLS**3)
            self.trigrams += counted.reshape(self.trigrams.shape)

    def probabilities(self, symbols: NDArray[np.uint16]) -> NDArray[np.float64]:
        """Returns the probabilities of the symbols under the four distributions [4, windows]."""
        first, second, third = _windows(symbols)
        bigrams = self.trigrams.sum(0)
        unigrams = bigrams.sum(0)
        after_two = np.maximum(self.trigrams.sum(2), 1)
        after_one = np.maximum(bigrams.sum(1), 1)
        return np.stack(
            [
                self.trigrams[first, second, third] / after_two[first, second],
                bigrams[second, third] / after_one[second],
                unigrams[third] / max(unigrams.sum(), 1),
                np.full(len(third), 1 / _SYMBOLS),
            ]
        )


def _fit(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the maximum-likelihood interpolation weights (by EM)."""
    weights = np.full(len(probabilities), 1 / len(probabilities))
    if not probabilities.shape[1]:
        return weights
    for _ in range(_FIT_ITERATIONS):
        posteriors = weights[:, None] * probabilities
        weights = (posteriors / posteriors.sum(0)).mean(1)
    return weights


def _symbols(split: TokenSplit, tokenizer: Tokenizer) -> NDArray[np.uint16]:
    """Returns the bytes of all documents, two end symbols before each, and one after the last."""
    pieces = []
    bounds = [*split.starts.tolist(), len(split.tokens)]
    for start, end in itertools.pairwise(bounds):
        if start >= _MOST_TOKENS:
            break
        data = tokenizer.decode_bytes(split.tokens[start:end].tolist())
        pieces.append(np.array([_END, _END], np.uint16))
        pieces.append(np.frombuffer(data, np.uint8).astype(np.uint16))
    return np.concatenate([*pieces, np.array([_END], np.uint16)])


def _windows(symbols: NDArray[np.uint16]) -> tuple[NDArray[np.int64], ...]:
    """Returns the three symbols of every window whose third symbol is predicted."""
    wide = symbols.astype(np.int64)
    first, second, third = wide[:-2], wide[1:-1], wide[2:]
    # The second of two end symbols is not predicted.
    wanted = (second != _END) | (third != _END)
    return first[wanted], second[wanted], third[wanted]


def _overlapping(symbols: NDArray[np.uint16]) -> list[NDArray[np.uint16]]:
    """Splits symbols into portions that overlap by two, so that each window is in one of them."""
    starts = range(0, max(len(symbols) - 2, 0), _PORTION)
    return [symbols[start : start + _PORTION + 2] for start in starts]
