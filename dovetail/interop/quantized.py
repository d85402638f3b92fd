"""Quantized checkpoints, dequantized to bfloat16 as they are read.

MXFP4 (https://arxiv.org/abs/2310.10537, used by gpt-oss): two 4-bit floats per byte, the low half
first, and one power-of-two scale per 32 of them. Block fp8 (used by DeepSeek-V3): 8-bit floats and
one float32 scale per block of 128 x 128.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from dovetail.config import ConfigError
from dovetail.interop.model_folders import ModelFolder
from dovetail.interop.source_tensors import Array, PlainTensor, SourceTensor

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FP4_VALUES = np.concatenate([_FP4, -_FP4])
_MXFP4_BIAS = 127
_ROWS_AT_A_TIME = 512  # keeps the float32 temporaries small


def dequantized(
    tensors: Mapping[str, PlainTensor], folder: ModelFolder, config: Mapping[str, Any]
) -> dict[str, SourceTensor]:
    """Replaces quantized tensors and their scales, as `quantization_config` describes them."""
    settings = config.get("quantization_config")
    found: dict[str, SourceTensor] = dict(tensors)
    if not settings:
        return found
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    if method == "mxfp4":
        for name in [name for name in tensors if name.endswith("_blocks")]:
            base = name.removesuffix("_blocks")
            scales = _partner(tensors, name, f"{base}_scales")
            del found[name], found[scales.name]
            found[base] = Mxfp4Tensor(tensors[name], scales)
    elif method == "fp8":
        block = _block_size(settings, folder)
        for name in [name for name in tensors if name.endswith("_scale_inv")]:
            weight = _partner(tensors, name, name.removesuffix("_scale_inv"))
            del found[name]
            found[weight.name] = BlockFp8Tensor(weight, tensors[name], block)
    else:
        raise ConfigError(
            f"{folder.name}/config.json: quantization_config.quant_method is {method!r}; known are "
            "'mxfp4' and 'fp8'. Import the unquantized model."
        )
    return found


@dataclass(frozen=True)
class QuantizedTensor:
    """A quantized tensor with its scales."""

    stored: PlainTensor
    scales: PlainTensor

    @property
    def where(self) -> str:
        """The name and the file, for error messages."""
        return self.stored.where

    @property
    def order(self) -> tuple[str, int]:
        """File and offset, to read in disk order."""
        return self.stored.order

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype after dequantization."""
        return BFLOAT16

    @property
    def size(self) -> int:
        """The number of bytes to read."""
        return self.stored.size + self.scales.size


@dataclass(frozen=True)
class Mxfp4Tensor(QuantizedTensor):
    """Experts in MXFP4. transformers loads them as the transpose of what is stored."""

    def __post_init__(self) -> None:
        if len(self.stored.shape) < 3 or self.stored.shape[:-1] != self.scales.shape:
            raise ConfigError(
                f"{self.stored.where}: its shape is {self.stored.shape}, which does not fit the "
                f"scales {self.scales.shape} of {self.scales.where}."
            )
        for tensor in (self.stored, self.scales):
            if tensor.dtype != np.uint8:
                raise ConfigError(f"{tensor.where}: expected U8 for MXFP4, got {tensor.dtype}.")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape after dequantization."""
        *lead, rows, groups, count = self.stored.shape
        return (*lead, groups * count * 2, rows)

    def read(self, index: tuple[int, ...] = ()) -> Array:
        """Returns the dequantized subarray at an index along the first axes."""
        values = dequantize_mxfp4(self.stored.read(index), self.scales.read(index))
        return np.swapaxes(values, -1, -2)


@dataclass(frozen=True)
class BlockFp8Tensor(QuantizedTensor):
    """A matrix in fp8 with a scale per block."""

    block: tuple[int, int]

    def __post_init__(self) -> None:
        shape = self.stored.shape
        wanted = tuple(-(-n // b) for n, b in zip(shape, self.block, strict=False))
        if len(shape) != 2 or self.scales.shape != wanted:
            raise ConfigError(
                f"{self.scales.where}: expected scales of shape {wanted} (blocks of {self.block}) "
                f"for {self.stored.where} of shape {shape}, got {self.scales.shape}."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.stored.shape

    def read(self, index: tuple[int, ...] = ()) -> Array:
        """Returns the dequantized subarray at an index along the first axes."""
        return dequantize_block_fp8(self.stored.read(), self.scales.read(), self.block)[index]


def dequantize_mxfp4(blocks: Array, scales: Array) -> Array:
    """Returns [..., rows, groups * bytes * 2] of blocks [..., rows, groups, bytes].

    Args:
        blocks: uint8, two 4-bit floats per byte.
        scales: uint8 [..., rows, groups], the exponent of two plus 127.
    """
    *lead, groups, count = blocks.shape
    flat_blocks, flat_scales = blocks.reshape(-1, groups, count), scales.reshape(-1, groups)
    values = np.empty((len(flat_blocks), groups, count, 2), BFLOAT16)
    for start in range(0, len(flat_blocks), _ROWS_AT_A_TIME):
        rows = slice(start, start + _ROWS_AT_A_TIME)
        exponents = flat_scales[rows, :, None].astype(np.int32) - _MXFP4_BIAS
        values[rows, ..., 0] = np.ldexp(_FP4_VALUES[flat_blocks[rows] & 0xF], exponents)
        values[rows, ..., 1] = np.ldexp(_FP4_VALUES[flat_blocks[rows] >> 4], exponents)
    return values.reshape(*lead, groups * count * 2)


def dequantize_block_fp8(weight: Array, scales: Array, block: tuple[int, int]) -> Array:
    """Returns weight [rows, columns] times the scale of its block; edge blocks may be smaller."""
    values = np.empty(weight.shape, BFLOAT16)
    columns = weight.shape[1]
    wide = np.repeat(scales.astype(np.float32), block[1], axis=1)[:, :columns]
    for index, scale in enumerate(wide):
        rows = slice(index * block[0], (index + 1) * block[0])
        values[rows] = weight[rows].astype(np.float32) * scale
    return values


def _partner(tensors: Mapping[str, PlainTensor], name: str, partner: str) -> PlainTensor:
    if partner not in tensors:
        raise ConfigError(f"{tensors[name].where} needs {partner}, which is in no file.")
    return tensors[partner]


def _block_size(settings: Mapping[str, Any], folder: ModelFolder) -> tuple[int, int]:
    size = settings.get("weight_block_size")
    numbers = isinstance(size, list) and len(size) == 2 and all(type(n) is int for n in size)
    if not numbers or math.prod(size or ()) <= 0 or min(size or (0,)) <= 0:
        raise ConfigError(
            f"{folder.name}/config.json: quantization_config.weight_block_size: expected two "
            f"numbers such as [128, 128], got {size!r}."
        )
    assert isinstance(size, list)
    return size[0], size[1]
