"""All-to-all of rows: the op, and its implementations in order."""

from dovetail.kernels.all_to_all import ragged, reference
from dovetail.kernels.all_to_all.op import (
    SendRanges,
    all_to_all,
    all_to_all_op,
    inverse_all_to_all,
)

all_to_all_op.implementations = (ragged.ragged, reference.reference)

__all__ = ["SendRanges", "all_to_all", "all_to_all_op", "inverse_all_to_all"]
