"""Splits for the tests of packings, and every packing by name."""

import numpy as np
from hypothesis import strategies as st

from dovetail.data import (
    BestFit,
    ConcatenateAndSplit,
    DropLong,
    PadEach,
    SplitLong,
    TruncateLong,
)
from dovetail.data.store import TokenSplit

END = 9
TOKEN_BYTES = np.array([1, 2, 3, 1, 1, 1, 5, 1, 1, 0], np.int32)

lists_of_documents = st.lists(st.lists(st.integers(0, 8), max_size=12), min_size=1, max_size=30)

LONG = (SplitLong, DropLong, TruncateLong)
PACKINGS = {
    "concatenate": ConcatenateAndSplit.Config(),
    **{
        f"{name}-{long.__name__}": packing.Config(long_documents=long.Config())
        for name, packing in (("best-fit", BestFit), ("pad-each", PadEach))
        for long in LONG
    },
}


def split_of(documents):
    """Returns the split of some documents; each gets an end of text."""
    closed = [[*document, END] for document in documents]
    lengths = [len(document) for document in closed]
    starts = np.cumsum([0, *lengths[:-1]])
    return TokenSplit(np.concatenate(closed).astype(np.uint16), starts)


def fields(batch):
    """Returns the arrays of a batch."""
    names = ("tokens", "targets", "positions", "segment_ids", "loss_weights")
    return [*(getattr(batch, name) for name in names), batch.extras["target_bytes"]]


def all_rows(packed):
    """Returns the numbers of all rows, and one of a row of padding."""
    return np.array([*range(packed.num_rows), -1])
