"""Blockwise attention of long sequences: loops against the reference, and memory that is linear."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.kernels.attention import (
    Causal,
    Full,
    Mask,
    Prefix,
    SlidingWindow,
    SoftCap,
)
from dovetail.kernels.attention.xla import blockwise as blockwise_module
from dovetail.kernels.attention.xla import looped as looped_module
from dovetail.parallel import MeshLayout
from tests.kernels.attention.cases import aligned_call, arrays
from tests.kernels.attention.compare import TOLERANCES, assert_close, results, temporaries

SINKS = jnp.asarray([0.7, -1.5])


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looped_module, "BLOCK", 32)
    monkeypatch.setattr(blockwise_module, "SHORT", 0)
    monkeypatch.setattr(blockwise_module, "FEW_QUERIES", 0)


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize(
    ("mask", "length", "kv_heads", "is_packed", "options"),
    [
        (Causal(), 150, 1, True, {}),
        (SlidingWindow(40), 128, 2, True, {"sinks": SINKS}),
        (Full(), 100, 2, True, {"score_map": SoftCap(3.0)}),
        (Causal() | Prefix(70), 128, 1, False, {}),
        (Causal(), 90, 1, True, {"score_activation": SoftCap(3.0)}),
        (Causal(), 96, 1, True, {"dtype": "bfloat16", "sinks": SINKS}),
    ],
    ids=["causal", "window, sinks", "full, soft cap", "prefix", "no softmax", "half precision"],
)
def test_it_agrees_with_the_reference(
    mask: Mask, length: int, kv_heads: int, is_packed: bool, options: dict[str, Any]
) -> None:
    sinks, dtype = options.pop("sinks", None), options.pop("dtype", "float32")
    inputs = arrays(2, length, length, 2, kv_heads, 8, dtype)
    call = aligned_call(mask, 2, length, is_packed) | options
    got = results("blockwise", inputs, call, sinks)
    assert_close(got, results("reference", inputs, call, sinks), TOLERANCES[dtype])


@pytest.mark.usefixtures("_small_blocks")
def test_more_keys_than_queries() -> None:
    inputs = arrays(2, 130, 150, 4, 2, 8)  # with fewer queries it would be decoding
    call = {"mask": SlidingWindow(60), "aligned": False}
    call["q_positions_BS"] = jnp.asarray([np.arange(15, 145)] * 2)
    call["kv_positions_BT"] = jnp.asarray([np.arange(150)] * 2)
    assert_close(results("blockwise", inputs, call), results("reference", inputs, call), 5e-6)


@pytest.mark.usefixtures("_small_blocks")
def test_fully_masked_queries_get_zeros_and_finite_gradients() -> None:
    inputs = arrays(2, 64, 64, 2, 2, 8)
    call = aligned_call(Causal(), 2, 64, is_packed=False)
    segments = jnp.asarray([[0] * 64, [1] * 50 + [0] * 14])
    call |= {"q_segment_ids_BS": segments, "kv_segment_ids_BT": segments}
    for array in results("blockwise", inputs, call):
        assert np.isfinite(array).all()
        assert not array[0].any()
        assert not array[1, 50:].any()


@pytest.mark.usefixtures("_small_blocks")
def test_sharded_equals_unsharded() -> None:
    inputs = arrays(4, 64, 64, 4, 2, 8)
    call = aligned_call(Causal(), 4, 64, is_packed=True)
    mesh = MeshLayout.Config(data=2, fsdp=2, model=2).build().mesh()
    by_head = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "model"))
    split = tuple(jax.device_put(array, by_head) for array in inputs)
    assert_close(results("blockwise", split, call), results("blockwise", inputs, call), 5e-6)


@pytest.mark.parametrize("length", [8192, pytest.param(16_384, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mask", [Causal(), Full()], ids=str)
@pytest.mark.parametrize("backwards", [False, True])
def test_memory_does_not_grow_with_the_square(mask: Mask, backwards: bool, length: int) -> None:
    once, twice = (temporaries("blockwise", mask, n, backwards) for n in (length, 2 * length))
    assert twice < 2.2 * once
