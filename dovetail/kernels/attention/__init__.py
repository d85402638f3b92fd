"""Attention: the op, its masks and score maps, and its implementations in the order of trial."""

from dovetail.config import register_function
from dovetail.kernels.attention.masks import (
    Band,
    Both,
    Causal,
    Either,
    Full,
    Mask,
    Prefix,
    SlidingWindow,
)
from dovetail.kernels.attention.op import attention, attention_op
from dovetail.kernels.score_maps import ScoreBias, ScoreMap, SoftCap

# isort: split
# Each of these registers itself: the first that supports a call runs it.
from dovetail.kernels.attention import reference as _reference

# isort: split
from dovetail.kernels.attention import blockwise as _blockwise

# isort: split
from dovetail.kernels.attention import splash as _splash
from dovetail.kernels.attention import triton as _triton

# isort: split
from dovetail.kernels.attention import mosaic as _mosaic

# isort: split
from dovetail.kernels.attention import cudnn as _cudnn
from dovetail.kernels.attention import ring as _ring
from dovetail.kernels.attention import ring_blocks as _ring_blocks

# isort: split
from dovetail.kernels.attention import ring_tpu as _ring_tpu
from dovetail.kernels.attention import ring_triton as _ring_triton

# isort: split
from dovetail.kernels.attention import ulysses as _ulysses

for _part in (Both, Causal, Either, Full, Prefix, SlidingWindow, SoftCap):
    register_function(f"{__name__}:{_part.__name__}")  # so that config text may name it

__all__ = [
    "Band",
    "Both",
    "Causal",
    "Either",
    "Full",
    "Mask",
    "Prefix",
    "ScoreBias",
    "ScoreMap",
    "SlidingWindow",
    "SoftCap",
    "attention",
    "attention_op",
]
del _blockwise, _cudnn, _mosaic, _reference, _splash, _triton
del _ring, _ring_blocks, _ring_tpu, _ring_triton, _ulysses
