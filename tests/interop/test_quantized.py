"""Quantized tensors: dequantization by hand, and through an import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.interop import import_hf
from dovetail.interop.model_folders import LocalFolder
from dovetail.interop.quantized import (
    BFLOAT16,
    dequantize_block_fp8,
    dequantize_mxfp4,
    dequantized,
)
from dovetail.interop.source_tensors import find_tensors
from dovetail.models import ModelFamily
from dovetail.runtime import SafetensorsWriter, StoredWeights
from tests.interop.files import random_tensors, write_model
from tests.interop.tiny_llama import TINY

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)


def mxfp4(random: np.random.Generator, *lead: int) -> tuple[np.ndarray, np.ndarray]:
    blocks = random.integers(0, 256, (*lead, 3, 16), np.uint8)
    return blocks, random.integers(120, 130, (*lead, 3), np.uint8)


def write(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    with SafetensorsWriter(folder / "model.safetensors", sizes) as writer:
        for name, array in arrays.items():
            writer.write(name, array)
    return folder


def test_mxfp4_by_hand() -> None:
    blocks = np.array([[[0x21, 0xF7]]], np.uint8)  # one row, one group, low halves first
    scales = np.array([[128]], np.uint8)
    values = dequantize_mxfp4(blocks, scales)
    assert values.dtype == BFLOAT16
    np.testing.assert_array_equal(values.astype(np.float32), [[1, 2, 12, -12]])


def test_block_fp8_by_hand_with_blocks_cut_at_the_edges() -> None:
    weight = np.ones((3, 5), FP8)
    scales = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    values = dequantize_block_fp8(weight, scales, (2, 2)).astype(np.float32)
    np.testing.assert_array_equal(values, [[1, 1, 2, 2, 3], [1, 1, 2, 2, 3], [4, 4, 5, 5, 6]])


def test_mxfp4_is_read_expert_by_expert(tmp_path: Path) -> None:
    blocks, scales = mxfp4(np.random.default_rng(0), 4, 6)
    folder = write(tmp_path / "hf", {"up_blocks": blocks, "up_scales": scales})
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    files = LocalFolder(folder)
    (name, tensor), *more = dequantized(find_tensors(files), files, config).items()
    assert (name, tensor.shape, tensor.dtype, more) == ("up", (4, 96, 6), BFLOAT16, [])
    whole = tensor.read()
    assert whole.shape == tensor.shape
    for expert in range(4):
        wanted = dequantize_mxfp4(blocks[expert], scales[expert]).T
        np.testing.assert_array_equal(tensor.read((expert,)), wanted)
        np.testing.assert_array_equal(whole[expert], wanted)


def test_a_block_fp8_model_is_imported_as_bfloat16(
    llama_family: ModelFamily, tmp_path: Path
) -> None:
    arrays: dict[str, Any] = random_tensors(llama_family, TINY, BFLOAT16)
    name = "model.layers.1.mlp.up_proj.weight"
    weight = arrays[name].astype(FP8)
    scales = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    arrays |= {name: weight, f"{name}_scale_inv": scales}
    settings = {"quant_method": "fp8", "weight_block_size": [8, 8]}
    folder = write_model(tmp_path / "hf", {**TINY, "quantization_config": settings}, {})
    write(folder, arrays)
    import_hf(str(folder), tmp_path / "run", progress=False)
    weights = StoredWeights(tmp_path / "run" / "weights")
    path = "decoder/stack/layer/feed_forward/up/weight"
    assert weights.dtypes[path] == BFLOAT16
    wanted = dequantize_block_fp8(weight, scales, (8, 8)).T
    np.testing.assert_array_equal(weights.array(path)[1], wanted)


@pytest.mark.parametrize(
    ("arrays", "settings", "message"),
    [
        ({"a_blocks": np.zeros((2, 3, 16), np.uint8)}, {"quant_method": "mxfp4"}, "needs a_scales"),
        (
            {"a_blocks": np.zeros((2, 3, 16), np.uint8), "a_scales": np.zeros((2, 4), np.uint8)},
            {"quant_method": "mxfp4"},
            r"a_blocks in .*does not fit the scales \(2, 4\)",
        ),
        ({"a_scale_inv": np.zeros((1, 1), np.float32)}, {"quant_method": "fp8"}, "block_size"),
        (
            {"a": np.zeros((4, 4), FP8), "a_scale_inv": np.zeros((1, 1), np.float32)},
            {"quant_method": "fp8", "weight_block_size": [2, 2]},
            r"expected scales of shape \(2, 2\)",
        ),
    ],
)
def test_tensors_and_scales_that_do_not_fit(
    tmp_path: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any], message: str
) -> None:
    folder = LocalFolder(write(tmp_path / "hf", arrays))
    with pytest.raises(ConfigError, match=message):
        dequantized(find_tensors(folder), folder, {"quantization_config": settings})
