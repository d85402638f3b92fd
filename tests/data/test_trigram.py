import math
import random

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.data import (
    BytePairTokenizer,
    ByteTokenizer,
    TextFiles,
    TokenInput,
    trigram,
    trigram_bits_per_byte,
)
from dovetail.data.trigram import _bits


def stream(*documents: bytes):
    symbols = [symbol for document in documents for symbol in (256, 256, *document)]
    return np.array([*symbols, 256], np.uint16)


def slow_bits(training, held_out, weights):
    """The same mixture with dictionaries, one symbol at a time."""

    def windows(symbols):
        values = symbols.tolist()
        threes = zip(values, values[1:], values[2:], strict=False)
        return [three for three in threes if three[1:] != (256, 256)]

    counts: dict[tuple[int, ...], int] = {}
    for three in windows(training):
        for size in range(4):
            # A context and what follows it, by length of context; the last is the total.
            counts[three[size:]] = counts.get(three[size:], 0) + 1
    contexts: dict[tuple[int, ...], int] = {}
    for three in windows(training):
        for size in (0, 1, 2):
            context = ("before", *three[size:2])
            contexts[context] = contexts.get(context, 0) + 1
    bits = 0.0
    for three in windows(held_out):
        parts = [
            counts.get(three[size:], 0) / contexts.get(("before", *three[size:2]), 1)
            for size in (0, 1, 2)
        ]
        bits -= math.log2(np.dot(weights, [*parts, 1 / 257]))
    return bits


@pytest.fixture
def texts_at_random():
    source = random.Random(0)
    return [bytes(source.choices(b"ab c\n", k=source.randint(5, 60))) for _ in range(30)]


def test_agrees_with_counting_one_by_one(texts_at_random, monkeypatch):
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    monkeypatch.setattr(trigram, "_fit", lambda probabilities: weights)
    training, held_out = stream(*texts_at_random[:20]), stream(*texts_at_random[20:])
    expected = slow_bits(training, held_out, weights)
    assert _bits(training, held_out) == pytest.approx(expected, rel=1e-9)
    monkeypatch.setattr(trigram, "_PORTION", 200)  # the cuts must not lose a window
    assert _bits(training, held_out) == pytest.approx(expected, rel=1e-9)


def test_weights_make_the_fitted_text_likely():
    probabilities = np.array([[0.9] * 90 + [0.0] * 10, [0.05] * 100])
    weights = trigram._fit(probabilities)
    losses = [
        -np.log(np.array([share, 1 - share]) @ probabilities).sum()
        for share in np.arange(0.01, 1, 0.01)
    ]
    assert weights[0] == pytest.approx(0.01 + 0.01 * np.argmin(losses), abs=0.01)


def test_the_standard_library(cache_folder):
    config = TokenInput.Config(tokenizer=ByteTokenizer.Config(), sequence_length=8, batch_size=1)
    source = config.build()
    bits = trigram_bits_per_byte(source)
    assert 2.4 < bits < 2.8
    assert (source.prepare().folder / "trigram-1.json").exists()


def test_the_result_is_cached_and_is_the_same_for_every_tokenizer(small_input, monkeypatch):
    bits = trigram_bits_per_byte(small_input.build())
    other = small_input.clone(tokenizer=BytePairTokenizer.Config(vocab_size=290))
    assert trigram_bits_per_byte(other.build()) == pytest.approx(bits, rel=1e-12)
    monkeypatch.setattr(trigram, "_compute", lambda *_: pytest.fail("computed again"))
    assert trigram_bits_per_byte(small_input.build()) == bits


def test_nothing_held_out(small_input, texts):
    config = small_input.clone(corpus=TextFiles.Config(files=str(texts / "one.txt")))
    with pytest.raises(ConfigError, match=r"held-out split in .* is empty.*two documents"):
        trigram_bits_per_byte(config.build())
