"""Concatenate and split against packing by hand, token by token, and against golden digests."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import ConcatenateAndSplit
from dovetail.data.store import TokenSplit
from tests.data.packing.cases import (
    END,
    TOKEN_BYTES,
    all_rows,
    fields,
    lists_of_documents,
    split_of,
)


def packed(split, length):
    return ConcatenateAndSplit.Config().build().pack(split, length)


def packed_by_hand(documents, row, length):
    """Returns one row as a list of (token, target, position, segment, weight, bytes)."""
    stream = [
        (token, which, place)
        for which, document in enumerate(documents)
        for place, token in enumerate([*document, END])
    ]
    result = []
    first = row * length
    for place in range(first, first + length):
        if row < 0 or place >= len(stream):
            result.append((END, END, 0, 0, 0, 0))
            continue
        token, which, position = stream[place]
        segment = which - stream[first][1] + 1
        position = min(position, place - first)
        target, weight = END, 0
        if place + 1 < len(stream):
            target, weight = stream[place + 1][0], int(stream[place + 1][1] == which)
        result.append((token, target, position, segment, weight, weight * TOKEN_BYTES[target]))
    return result


@given(lists_of_documents, st.integers(1, 9))
def test_rows_are_those_packed_by_hand(documents, length):
    rows = packed(split_of(documents), length)
    batch = rows.batch(all_rows(rows), END, TOKEN_BYTES)
    expected = [packed_by_hand(documents, row, length) for row in all_rows(rows)]
    np.testing.assert_array_equal(np.stack(fields(batch), axis=-1), expected)


@given(lists_of_documents, st.integers(1, 9))
def test_every_token_after_the_first_of_its_document_is_a_target_once(documents, length):
    rows = packed(split_of(documents), length)
    batch = rows.batch(all_rows(rows), END, TOKEN_BYTES)
    counted = batch.targets[batch.loss_weights > 0].tolist()
    closed = [[*document, END] for document in documents]
    assert counted == [token for document in closed for token in document[1:]]


def test_dtypes():
    batch = packed(split_of([[1, 2]]), 4).batch(np.array([0]), END, TOKEN_BYTES)
    assert [field.dtype.name for field in fields(batch)] == [
        *("int32", "int32", "int32", "int32"),
        *("float32", "int32"),
    ]


@pytest.mark.parametrize(("tokens", "rows"), [(0, 0), (1, 0), (2, 1), (5, 1), (6, 2), (9, 2)])
def test_number_of_rows(tokens, rows):
    split = TokenSplit(np.zeros(tokens, np.uint16), np.zeros(min(tokens, 1), np.int64))
    assert packed(split, 4).num_rows == rows


@pytest.mark.parametrize(
    ("length", "rows", "digest"),
    [
        (1, 19525, "8ebab8927ab26d48"),
        (13, 1502, "40e2f5ff2b153be7"),
        (64, 306, "77068dd8971185a8"),
        (1000, 20, "883282e007b24a90"),
    ],
)
def test_batches_never_change(length, rows, digest):
    """A run would continue with other data; these are of before packings could be replaced."""
    lengths = np.arange(1, 400) * 7919 % 97 + 1
    starts = np.cumsum(lengths) - lengths
    tokens = (np.arange(lengths.sum()) * 48271 % 499).astype(np.uint16)
    tokens[starts + lengths - 1] = 499
    found = packed(TokenSplit(tokens, starts), length)
    assert found.num_rows == rows
    token_bytes = np.arange(500, dtype=np.int32) % 7
    batch = found.batch(all_rows(found)[::-1], 499, token_bytes)
    content = b"".join(array.tobytes() + array.dtype.str.encode() for array in fields(batch))
    assert hashlib.blake2b(content, digest_size=8).hexdigest() == digest
