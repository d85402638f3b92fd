"""Best-fit decreasing against the textbook's loop, and how well it fills rows."""

import time

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import BestFit, BytePairTokenizer, StandardLibrary, TokenInput
from dovetail.models.llama import llama
from dovetail.module import TokenBatch, functional
from tests.data.packing.cases import END, TOKEN_BYTES, all_rows, split_of
from tests.layers.cases import random_params


def remaining_capacities(lengths, sequence_length):
    """Returns the remaining capacity of each row, by one search of all rows for each piece."""
    rows = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row, capacity in enumerate(rows) if capacity >= length]
        if fitting:
            rows[min(fitting, key=lambda row: rows[row])] -= length
        else:
            rows.append(sequence_length - length)
    return rows


@given(st.data(), st.integers(1, 40))
def test_rows_are_filled_as_by_the_textbook(data, sequence_length):
    lengths = data.draw(st.lists(st.integers(1, sequence_length), max_size=120))
    arranged = BestFit.Config().build().arrange(np.array(lengths, np.int32), sequence_length)
    assert sorted(arranged.order_P) == list(range(len(lengths)))
    ordered = [lengths[piece] for piece in arranged.order_P]
    bounds = zip(arranged.row_starts, arranged.row_starts[1:], strict=False)
    found = [sequence_length - sum(ordered[begin:end]) for begin, end in bounds]
    assert sorted(found) == sorted(remaining_capacities(lengths, sequence_length))


def test_a_million_documents_take_seconds():
    lengths = np.random.default_rng(0).lognormal(6.0, 1.3, 10**6).clip(1, 2048).astype(np.int32)
    began = time.monotonic()
    arranged = BestFit.Config().build().arrange(lengths, 2048)
    assert time.monotonic() - began < 20  # 0.2 s on a quiet machine
    assert lengths.sum() / (2048 * (len(arranged.row_starts) - 1)) > 0.999


def test_the_loss_of_packed_documents_is_that_of_each_alone():
    """Neither attention nor positions nor targets cross from one document to the next."""
    random = np.random.default_rng(0)
    documents = [random.integers(0, END, size).tolist() for size in (3, 11, 1, 7, 5, 2, 9, 4, 6)]
    packed = BestFit.Config().build().pack(split_of(documents), 16)
    assert packed.num_rows < len(documents) - 2

    sizes = {"width": 32, "num_layers": 2, "num_heads": 4, "hidden": 48}
    model = llama(**sizes, vocab_size=END + 1, tied=False).build()
    params = random_params(model)

    @jax.jit
    def total_loss(batch):
        _, outputs = functional(model, params, batch, losses="return")
        return outputs.losses["loss/next_token"].total

    together = total_loss(packed.batch(all_rows(packed), END, TOKEN_BYTES))
    alone = sum(float(total_loss(alone_in_a_row(document, 16))) for document in documents)
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def alone_in_a_row(document, length):
    tokens = np.zeros((1, length + 1), np.int32)
    tokens[0, : len(document) + 1] = [*document, END]
    exists = np.arange(length)[None] < len(document)
    return TokenBatch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        positions=np.arange(length, dtype=np.int32)[None],
        segment_ids=exists.astype(np.int32),
        loss_weights=exists.astype(np.float32),
        extras={"target_bytes": np.zeros((1, length), np.int32)},
    )


@pytest.mark.slow
def test_the_standard_library_fills_its_rows(cache_folder):
    """The tokenizer is that of tiny-lm."""
    source = TokenInput.Config(
        corpus=StandardLibrary.Config(),
        tokenizer=BytePairTokenizer.Config(vocab_size=2048),
        packing=BestFit.Config(),
        sequence_length=2048,
        batch_size=8,
    ).build()
    statistics = source.packing_statistics()
    assert statistics.documents > 300
    assert statistics.fill_rate > 0.98
    assert statistics.tokens == source.prepare().splits["train"].tokens
