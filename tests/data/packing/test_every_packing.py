"""What every packing promises, at any sizes, against the documents themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.data import Arrangement, DocumentPiece, IndexedPacking
from tests.data.packing.cases import (
    END,
    PACKINGS,
    TOKEN_BYTES,
    all_rows,
    fields,
    lists_of_documents,
    split_of,
)

every_packing = pytest.mark.parametrize("name", PACKINGS)
lengths = st.integers(1, 9)


def pack(name, documents, length):
    return PACKINGS[name].build().pack(split_of(documents), length)


def row_by_hand(pieces, documents, length):
    """Returns one row as a list of (token, target, position, segment, weight, bytes)."""
    stream = [token for document in documents for token in [*document, END]]
    row = [(END, END, 0, 0, 0, 0)] * length
    for segment, piece in enumerate(pieces, start=1):
        document = [*documents[piece.document], END]
        begin = sum(len(one) + 1 for one in documents[: piece.document])
        for position in range(piece.length):
            offset = piece.offset + position
            following = stream[begin + offset + 1 : begin + offset + 2]
            target, weight = (following or [END])[0], int(offset + 1 < len(document))
            size = weight * TOKEN_BYTES[target]
            values = document[offset], target, position, segment, weight, size
            row[piece.position + position] = values
    return row


@every_packing
@given(documents=lists_of_documents, length=lengths)
def test_a_batch_has_the_tokens_of_its_documents(name, documents, length):
    packed = pack(name, documents, length)
    rows = all_rows(packed)
    expected = [row_by_hand(pieces, documents, length) for pieces in packed.documents(rows)]
    found = np.stack(fields(packed.batch(rows, END, TOKEN_BYTES)), axis=-1)
    np.testing.assert_array_equal(found, expected)


@every_packing
@given(documents=lists_of_documents, length=lengths)
def test_pieces_follow_each_other_from_the_start_of_a_row(name, documents, length):
    packed = pack(name, documents, length)
    *rows, padding = packed.documents(all_rows(packed))
    assert padding == []
    for pieces in rows:
        assert pieces
        assert all(piece.length > 0 for piece in pieces)
        ends = np.cumsum([piece.length for piece in pieces]).tolist()
        assert [piece.position for piece in pieces] == [0, *ends[:-1]]
        assert ends[-1] <= length


@every_packing
@given(documents=lists_of_documents, length=lengths)
def test_every_token_is_in_exactly_one_row_or_dropped(name, documents, length):
    packed = pack(name, documents, length)
    rows = packed.documents(all_rows(packed))
    held = [[] for _ in documents]
    for row, pieces in enumerate(rows):
        for piece in pieces:
            held[piece.document] += [(piece.offset + i, row) for i in range(piece.length)]
    sizes = [len(document) + 1 for document in documents]
    last_is_missing = name == "concatenate" and (sum(sizes) - 1) % length == 0
    sizes[-1] -= last_is_missing  # an end of text that is a target alone
    for tokens in held:
        assert sorted(offset for offset, _ in tokens) == list(range(len(tokens)))
    found = [len(tokens) for tokens in held]
    if "Drop" in name:
        assert found == [size if size <= length else 0 for size in sizes]
    elif "Truncate" in name:
        assert found == [min(size, length) for size in sizes]
    else:
        assert found == sizes

    statistics = packed.statistics()
    assert statistics.rows == packed.num_rows == len(rows) - 1
    assert statistics.documents == len(documents)
    assert statistics.tokens == sum(found)
    assert statistics.padding == len(rows[:-1]) * length - sum(found)
    assert statistics.tokens_dropped == sum(sizes) - sum(found)
    split = sum(len({row for _, row in tokens}) > 1 for tokens in held)
    assert statistics.documents_split == split
    dropped = sum(not tokens for tokens in held) - (last_is_missing and sizes[-1] == 0)
    assert statistics.documents_dropped == dropped


@every_packing
@given(documents=lists_of_documents, length=lengths, data=st.data())
def test_any_rows_are_made_directly(name, documents, length, data):
    packed = pack(name, documents, length)
    everything = fields(packed.batch(all_rows(packed), END, TOKEN_BYTES))
    numbers = st.integers(-1, packed.num_rows - 1)
    rows = np.array(data.draw(st.lists(numbers, min_size=1, max_size=9)))
    for whole, found in zip(everything, fields(packed.batch(rows, END, TOKEN_BYTES)), strict=True):
        np.testing.assert_array_equal(found, whole[rows])


@every_packing
def test_a_split_without_documents_has_no_rows(name):
    split = split_of([[1]])
    empty = type(split)(split.tokens[:0], split.starts[:0])
    packed = PACKINGS[name].build().pack(empty, 4)
    assert packed.num_rows == 0
    assert packed.documents(np.array([-1])) == [[]]
    statistics = packed.statistics().facts()
    assert (statistics["rows"], statistics["tokens"], statistics["fill_rate"]) == (0, 0, 0.0)
    batch = packed.batch(np.array([-1, -1]), END, TOKEN_BYTES)
    assert batch.tokens.tolist() == [[END] * 4] * 2
    assert not batch.segment_ids.any()


def test_documents_of_rows():
    packed = pack("best-fit-SplitLong", [[1, 2], [3] * 6, [4]], 5)
    assert packed.documents(np.array([1, -1, 0])) == [
        [DocumentPiece(0, 0, 3, 0), DocumentPiece(1, 5, 2, 3)],
        [],
        [DocumentPiece(1, 0, 5, 0)],
    ]
    assert packed.documents(np.array([2])) == [[DocumentPiece(2, 0, 2, 0)]]
    assert packed.statistics().facts() == {
        "rows": 3,
        "sequence_length": 5,
        "documents": 3,
        "tokens": 12,
        "documents_split": 1,
        "documents_dropped": 0,
        "tokens_dropped": 0,
        "padding": 3,
        "fill_rate": 0.8,
    }


class Arranged(IndexedPacking):
    """Arranges pieces as told."""

    def __init__(self, order, row_starts):
        super().__init__(IndexedPacking.Config())
        self.arrangement = Arrangement(np.array(order), np.array(row_starts))

    def arrange(self, lengths_P, sequence_length):
        return self.arrangement


@pytest.mark.parametrize(
    ("order", "row_starts", "message"),
    [
        ([0, 1], [0, 2], "expected each of 3 pieces once"),
        ([0, 1, 1], [0, 2, 3], "expected each of 3 pieces once"),
        ([0, 1, 2], [0, 2], "expected rising row starts from 0 to 3"),
        ([0, 1, 2], [1, 3], "expected rising row starts from 0 to 3"),
        ([0, 1, 2], [0, 2, 2, 3], "expected rising row starts from 0 to 3"),
        ([2, 1, 0], [0, 1, 3], "expected rows of at most 5 tokens, got one of 6"),
    ],
)
def test_a_wrong_arrangement_is_refused(order, row_starts, message):
    with pytest.raises(ValueError, match=f"^Arranged.arrange: {message}"):
        Arranged(order, row_starts).pack(split_of([[1], [2] * 3, [4]]), 5)
