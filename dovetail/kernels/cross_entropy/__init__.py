"""Cross-entropy: output layer and loss in one op, and its implementations in order."""

from dovetail.kernels.cross_entropy import chunked, reference
from dovetail.kernels.cross_entropy.chunked import count_chunks
from dovetail.kernels.cross_entropy.op import CrossEntropy, cross_entropy, cross_entropy_op
from dovetail.kernels.score_maps import ScoreMap, SoftCap

cross_entropy_op.implementations = (chunked.chunked, reference.reference)

__all__ = [
    "CrossEntropy",
    "ScoreMap",
    "SoftCap",
    "count_chunks",
    "cross_entropy",
    "cross_entropy_op",
]
