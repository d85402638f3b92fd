"""Next-fit: a row has documents that follow each other in the corpus."""

import numpy as np
from numpy.typing import NDArray

from dovetail.data import Arrangement, IndexedPacking


class NextFit(IndexedPacking):
    """Begins a new row where the next document does not fit into the last one."""

    def arrange(self, lengths_P: NDArray[np.int32], sequence_length: int) -> Arrangement:
        """Keeps the order of the documents."""
        row_starts, used = [], sequence_length
        for piece, length in enumerate(lengths_P.tolist()):
            if used + length > sequence_length:
                row_starts.append(piece)
                used = 0
            used += length
        return Arrangement(np.arange(len(lengths_P)), np.array([*row_starts, len(lengths_P)]))
