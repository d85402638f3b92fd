"""The yardstick: how well three bytes of context alone predict the held-out text.

An interpolated byte trigram mixes the frequencies of each byte after the two before it, after the
one before it, by itself, and the uniform distribution. A language model that is worth its steps
ends clearly below it in bits per byte.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.folders import DiskFullError, write_atomically
from dovetail.data.interfaces import HELD_OUT, TRAIN, Input, Tokenizer
from dovetail.data.store import TokenSplit, TokenStore

_FILE = "trigram-1.json"
_END = 256  # the end of a document; two of them also stand before its first byte
_SYMBOLS = 257
_MOST_TOKENS = 2**27  # the counts of a trigram are settled long before
_PORTION = 2**22  # symbols counted at a time, which bounds the memory
_FIT_SYMBOLS = 2**19
_FIT_ITERATIONS = 60


def trigram_bits_per_byte(source: Input) -> float:
    """Returns the bits per byte of a trigram of the training split on the held-out split.

    The mixing weights are fitted on a tenth of the training split that the counts first leave out;
    then all of it is counted. The end of each document is predicted too. The result is kept beside
    the prepared data.
    """
    folder = source.prepare().folder
    try:
        return float(json.loads((folder / _FILE).read_text())["bits_per_byte"])
    except (OSError, ValueError, KeyError, TypeError):
        result = _compute(folder, source.tokenizer)
    # Where the prepared data is read-only, the figure is simply computed again next time.
    with contextlib.suppress(ConfigError, DiskFullError):
        write_atomically(folder / _FILE, json.dumps({"bits_per_byte": result}) + "\n")
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
    """Returns how many bits a trigram of one stream of symbols needs for another."""
    cut = len(training) - len(training) // 10
    counts = _Counts.zero()
    counts.add(training[:cut])
    weights = _fit(counts.probabilities(training[cut:][:_FIT_SYMBOLS]))
    # Two symbols overlap, so that no trigram is lost at the cut.
    counts.add(training[cut - 2 :])
    portions = _overlapping(held_out)
    return -sum(float(np.log2(weights @ counts.probabilities(part)).sum()) for part in portions)


@dataclass
class _Counts:
    """How often each symbol follows the two before it; the shorter contexts follow from that."""

    trigrams: NDArray[np.int64]

    @classmethod
    def zero(cls) -> _Counts:
        return cls(np.zeros((_SYMBOLS, _SYMBOLS, _SYMBOLS), np.int64))

    def add(self, symbols: NDArray[np.uint16]) -> None:
        for portion in _overlapping(symbols):
            first, second, third = _windows(portion)
            places = (first * _SYMBOLS + second) * _SYMBOLS + third
            counted = np.bincount(places, minlength=_SYMBOLS**3)
            self.trigrams += counted.reshape(self.trigrams.shape)

    def probabilities(self, symbols: NDArray[np.uint16]) -> NDArray[np.float64]:
        """Returns what each of the four distributions gives to each symbol [4, windows]."""
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
    """Returns the mixing weights that make the given symbols most likely (by EM)."""
    weights = np.full(len(probabilities), 1 / len(probabilities))
    if not probabilities.shape[1]:
        return weights
    for _ in range(_FIT_ITERATIONS):
        shares = weights[:, None] * probabilities
        weights = (shares / shares.sum(0)).mean(1)
    return weights


def _symbols(split: TokenSplit, tokenizer: Tokenizer) -> NDArray[np.uint16]:
    """Returns the bytes of all documents, each after two end symbols, with one at the very end."""
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
    """Returns first, second and third of every window whose third is to be predicted."""
    wide = symbols.astype(np.int64)
    first, second, third = wide[:-2], wide[1:-1], wide[2:]
    # After an end there is either a first byte or the second of two ends, which is no prediction.
    wanted = (second != _END) | (third != _END)
    return first[wanted], second[wanted], third[wanted]


def _overlapping(symbols: NDArray[np.uint16]) -> list[NDArray[np.uint16]]:
    """Cuts a stream into portions that share two symbols, so that each window is in one."""
    starts = range(0, max(len(symbols) - 2, 0), _PORTION)
    return [symbols[start : start + _PORTION + 2] for start in starts]
