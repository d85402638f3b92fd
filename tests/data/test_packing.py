"""Packing by index arithmetic against packing by hand, token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data.packing import num_rows, pack
from dovetail.data.store import TokenSplit

END = 9
TOKEN_BYTES = np.array([1, 2, 3, 1, 1, 1, 5, 1, 1, 0], np.int32)

lists_of_documents = st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=12), min_size=1)


def split_of(documents):
    closed = [[*document, END] for document in documents]
    lengths = [len(document) for document in closed]
    starts = np.cumsum([0, *lengths[:-1]])
    return TokenSplit(np.concatenate(closed).astype(np.uint16), starts)


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


def fields(batch):
    names = ("tokens", "targets", "positions", "segment_ids", "loss_weights")
    return [*(getattr(batch, name) for name in names), batch.extras["target_bytes"]]


@given(lists_of_documents, st.integers(1, 9))
def test_rows_are_those_packed_by_hand(documents, length):
    split = split_of(documents)
    rows = [*range(num_rows(len(split.tokens), length)), -1]
    batch = pack(split, np.array(rows), length, END, TOKEN_BYTES)
    expected = [packed_by_hand(documents, row, length) for row in rows]
    np.testing.assert_array_equal(np.stack(fields(batch), axis=-1), expected)


@given(lists_of_documents, st.integers(1, 9))
def test_every_token_after_the_first_of_its_document_is_a_target_once(documents, length):
    split = split_of(documents)
    batch = pack(split, np.arange(num_rows(len(split.tokens), length)), length, END, TOKEN_BYTES)
    counted = batch.targets[batch.loss_weights > 0].tolist()
    assert counted == [token for document in documents for token in [*document[1:], END]]


def test_dtypes():
    batch = pack(split_of([[1, 2]]), np.array([0]), 4, END, TOKEN_BYTES)
    assert [field.dtype.name for field in fields(batch)] == [
        *("int32", "int32", "int32", "int32"),
        *("float32", "int32"),
    ]


@pytest.mark.parametrize(("tokens", "rows"), [(0, 0), (1, 0), (2, 1), (5, 1), (6, 2), (9, 2)])
def test_number_of_rows(tokens, rows):
    assert num_rows(tokens, 4) == rows
