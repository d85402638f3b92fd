"""Which documents are held out: decided by their names, never by their place in the corpus.

So the split is the same for every tokenizer and on every machine, and (but for corpora of a
handful of documents) a document added to the corpus does not move others from one side to the
other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

HELD_OUT_FRACTION = 0.05
SPLIT_VERSION = 1


def held_out_names(names: Collection[str], fraction: float = HELD_OUT_FRACTION) -> frozenset[str]:
    """Returns the names that are held out: about `fraction` of them.

    Of two documents or more, at least one is held out (that of the lowest draw) and at least one is
    not, so that small corpora can be evaluated too. A single document is always for training.
    """
    draws = sorted((draw(name), name) for name in set(names))
    count = sum(value < fraction for value, _ in draws)
    count = min(max(count, 1), len(draws) - 1)
    return frozenset(name for _, name in draws[: max(count, 0)])


def draw(name: str) -> float:
    """Returns the number in [0, 1) that a name stands for."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
