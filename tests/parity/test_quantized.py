"""Quantised tensors become the numbers that transformers makes of them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from dovetail.interop.quantized import dequantize_block_fp8, dequantize_mxfp4

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)


def test_mxfp4_as_transformers_dequantises_it() -> None:
    random = np.random.default_rng(1)
    blocks = random.integers(0, 256, (4, 6, 3, 16), np.uint8)
    scales = random.integers(120, 130, (4, 6, 3), np.uint8)
    wanted = convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales))
    ours = np.swapaxes(dequantize_mxfp4(blocks, scales), -1, -2)
    assert wanted.dtype == torch.bfloat16
    np.testing.assert_array_equal(ours.astype(np.float32), wanted.float().numpy())


def test_block_fp8_as_transformers_dequantises_it() -> None:
    random = np.random.default_rng(2)
    weight = random.normal(size=(8, 12)).astype(FP8)
    scales = random.uniform(0.1, 3, (2, 3)).astype(np.float32)
    theirs = torch.from_numpy(weight.view(np.uint8)).view(torch.float8_e4m3fn)
    wanted = Fp8Dequantize(None)._dequantize_one(theirs, torch.from_numpy(scales), torch.bfloat16)
    ours = dequantize_block_fp8(weight, scales, (4, 4))
    np.testing.assert_array_equal(ours.astype(np.float32), wanted.float().numpy())
