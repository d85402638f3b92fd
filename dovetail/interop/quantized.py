"""Quantised tensors of published checkpoints, turned into bfloat16 as they are read.

MXFP4 (https://arxiv.org/abs/2310.10537, as gpt-oss has it): two four-bit numbers a byte, low half
first, and one power of two for 32 of them. Block fp8 (as DeepSeek-V3 has it): eight-bit floats and
one float32 scale a block, 128 x 128.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FP4_VALUES = np.concatenate([_FP4, -_FP4])
_MXFP4_BIAS = 127
_ROWS_AT_A_TIME = 512  # keeps what is in float32 small beside the result


def mxfp4_to_bfloat16(blocks: Array, scales: Array) -> Array:
    """Returns [..., rows, groups * bytes * 2] of blocks [..., rows, groups, bytes].

    Args:
        blocks: uint8, two numbers a byte.
        scales: uint8 [..., rows, groups], the power of two plus 127.
    """
    *lead, groups, count = blocks.shape
    flat_blocks, flat_scales = blocks.reshape(-1, groups, count), scales.reshape(-1, groups)
    made = np.empty((len(flat_blocks), groups, count, 2), BFLOAT16)
    for start in range(0, len(flat_blocks), _ROWS_AT_A_TIME):
        rows = slice(start, start + _ROWS_AT_A_TIME)
        exponents = flat_scales[rows, :, None].astype(np.int32) - _MXFP4_BIAS
        made[rows, ..., 0] = np.ldexp(_FP4_VALUES[flat_blocks[rows] & 0xF], exponents)
        made[rows, ..., 1] = np.ldexp(_FP4_VALUES[flat_blocks[rows] >> 4], exponents)
    return made.reshape(*lead, groups * count * 2)


def block_fp8_to_bfloat16(weight: Array, scales: Array, block: tuple[int, int]) -> Array:
    """Returns weight [rows, columns] times the scale of each block; blocks at the edges are cut."""
    made = np.empty(weight.shape, BFLOAT16)
    columns = weight.shape[1]
    wide = np.repeat(scales.astype(np.float32), block[1], axis=1)[:, :columns]
    for index, scale in enumerate(wide):
        rows = slice(index * block[0], (index + 1) * block[0])
        made[rows] = weight[rows].astype(np.float32) * scale
    return made
