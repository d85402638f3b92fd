"""Which documents are held out: a document's name decides, through a hash.

So the split is the same for every tokenizer and on every machine, and new documents move no others
(but in tiny corpora).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

HELD_OUT_FRACTION = 0.05
SPLIT_VERSION = 1


def key_of(name: str) -> int:
    """Returns the 64-bit hash of a document's name."""
    data = name.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def draw(name: str) -> float:
    """Returns the hash of a name as a number in [0, 1)."""
    return key_of(name) / 2**64


def held_out_limit(keys: NDArray[np.uint64], fraction: float = HELD_OUT_FRACTION) -> int:
    """Returns the largest key that is held out; -1 if none is.

    About `fraction` of the documents are held out. Of two or more documents, at least one is held
    out and at least one is not, so that small corpora can be evaluated. A single document is always
    for training.
    """
    if len(keys) < 2:
        return -1
    count = int((keys.astype(np.float64) / 2.0**64 < fraction).sum())
    count = min(max(count, 1), len(keys) - 1)
    return int(np.partition(keys, count - 1)[count - 1])


def held_out_names(names: Collection[str], fraction: float = HELD_OUT_FRACTION) -> frozenset[str]:
    """Returns the names of the held-out documents."""
    keys = {name: key_of(name) for name in set(names)}
    limit = held_out_limit(np.array(list(keys.values()), np.uint64), fraction)
    return frozenset(name for name, key in keys.items() if key <= limit)
