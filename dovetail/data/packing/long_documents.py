"""What to do with documents that are longer than a row."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.config import Component


class LongDocuments(Protocol):
    """Decides how much of each document is packed."""

    def kept_tokens(self, lengths_N: NDArray[np.int64], sequence_length: int) -> NDArray[np.int64]:
        """Returns how many tokens to keep of each document, from its start.

        What is kept of a document and longer than a row is split into full rows and a rest.
        """
        ...


class SplitLong(Component):
    """Splits a long document into full rows and a rest."""

    def kept_tokens(self, lengths_N: NDArray[np.int64], sequence_length: int) -> NDArray[np.int64]:
        """Keeps all."""
        return lengths_N


class DropLong(Component):
    """Drops a document that is longer than a row."""

    def kept_tokens(self, lengths_N: NDArray[np.int64], sequence_length: int) -> NDArray[np.int64]:
        """Keeps documents that fit into a row."""
        return np.where(lengths_N <= sequence_length, lengths_N, 0)


class TruncateLong(Component):
    """Keeps the first tokens of a document, as many as a row has."""

    def kept_tokens(self, lengths_N: NDArray[np.int64], sequence_length: int) -> NDArray[np.int64]:
        """Keeps at most a row."""
        return np.minimum(lengths_N, sequence_length)
