"""Cross-entropy: output layer and loss as one op, and its implementations in the order of trial."""

from dovetail.kernels.cross_entropy.op import CrossEntropy, cross_entropy, cross_entropy_op
from dovetail.kernels.score_maps import ScoreMap, SoftCap

# isort: split
# Each of these registers itself: the first that supports a call runs it.
from dovetail.kernels.cross_entropy import reference as _reference

# isort: split
from dovetail.kernels.cross_entropy import chunked as _chunked
from dovetail.kernels.cross_entropy.chunked import count_chunks

__all__ = [
    "CrossEntropy",
    "ScoreMap",
    "SoftCap",
    "count_chunks",
    "cross_entropy",
    "cross_entropy_op",
]
del _chunked, _reference
