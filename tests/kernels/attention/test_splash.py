"""Splash attention, interpreted, against the reference; what it refuses, and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels import choices, clear_choices, interpreted, prefer, target_platform
from dovetail.kernels.attention import (
    Causal,
    Full,
    Mask,
    Prefix,
    ScoreBias,
    ScoreMap,
    SlidingWindow,
    SoftCap,
    attention,
    attention_op,
)
from dovetail.kernels.attention.tpu.splash import block_size
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from tests.kernels.attention.cases import aligned_call, arrays, record
from tests.kernels.attention.compare import TOLERANCES, assert_close, results

SINKS = jnp.asarray([0.7, -1.5, 3.0, 0.0])


def assert_agrees(
    mask: Mask,
    length: int = 256,
    heads: tuple[int, int] = (4, 2),
    widths: tuple[int, int] = (16, 16),
    dtype: str = "float32",
    is_packed: bool = True,
    cap: float | None = None,
    sinks: Any = None,
) -> None:
    inputs = arrays(2, length, length, *heads, widths[0], dtype, widths[1])
    call = aligned_call(mask, 2, length, is_packed)
    call |= {"score_map": None if cap is None else SoftCap(cap)}
    got = results("splash", inputs, call, sinks, platform="tpu")
    assert_close(got, results("reference", inputs, call, sinks), TOLERANCES[dtype])


def test_causal_with_segments_and_shared_heads() -> None:
    assert_agrees(Causal())


def test_sinks_in_half_precision_keep_the_type_of_their_gradient() -> None:
    assert_agrees(Causal(), dtype="bfloat16", sinks=SINKS)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(
    "mask", [Causal(), Full(), SlidingWindow(30), SlidingWindow(200) & Causal()], ids=str
)
def test_masks_and_types(mask: Mask, is_packed: bool, dtype: str) -> None:
    assert_agrees(mask, is_packed=is_packed, dtype=dtype)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "changes",
    [
        {"length": 128, "heads": (2, 2)},
        {"length": 640, "heads": (4, 1)},
        {"length": 1024, "heads": (1, 1), "widths": (64, 64)},
        {"widths": (24, 16)},
        {"widths": (128, 128), "heads": (4, 4)},
        {"cap": 2.0},
        {"sinks": SINKS},
        {"sinks": SINKS, "cap": 5.0, "is_packed": False, "mask": SlidingWindow(77)},
    ],
    ids=str,
)
def test_shapes_caps_and_sinks(changes: dict[str, Any]) -> None:
    assert_agrees(changes.pop("mask", Causal()), **changes)


def test_sharded_equals_unsharded() -> None:
    inputs = arrays(4, 128, 128, 4, 2, 16)
    call = aligned_call(Causal(), 4, 128, is_packed=True)
    expected = results("reference", inputs, call, SINKS)
    layout = MeshLayout.Config(data=2, fsdp=2, model=2).build()
    placement = Placement(layout.mesh(), AxisRules.Config().build())
    shardings = [
        *[placement.sharding(("batch", "sequence", "heads", None))] * 3,
        placement.sharding(("heads",)),
    ]
    split = [jax.device_put(*pair) for pair in zip((*inputs, SINKS), shardings, strict=True)]

    def compute(*inputs: Any) -> Any:
        mixed, pull = jax.vjp(lambda *a: attention(*a[:3], **call, sinks_H=a[3]), *inputs)
        return mixed, pull(jnp.cos(mixed))

    with interpreted("tpu"), prefer(attention="splash"), use_placement(placement):
        got = jax.jit(compute)(*split)
    assert_close([np.asarray(leaf) for leaf in jax.tree.leaves(got)], expected, 5e-6)


@dataclass(frozen=True)
class Slope(ScoreBias):
    def __call__(self, heads: Any, queries: Any, keys: Any, /) -> Any:
        return 0.1 * (keys - queries) * heads


@dataclass(frozen=True)
class Doubled(ScoreMap):
    def __call__(self, scores: Any, /) -> Any:
        return 2 * scores


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"length": 200}, "a sequence of 200 is no multiple of 128"),
        ({"dtype": "float16"}, "it takes float32 or bfloat16, not float16"),
        ({"mask": Causal() | Prefix(3)}, "is no band around the diagonal"),
        ({"aligned": False}, "queries and keys are not the same tokens"),
        ({"score_map": Doubled()}, r"no score map but SoftCap, and this is Doubled\(\)"),
        ({"score_bias": Slope()}, r"it supports no score bias, and this is Slope\(\)"),
        ({"score_activation": Doubled()}, r"it computes a softmax, not Doubled\(\)"),
    ],
)
def test_every_refusal_has_a_reason(changes: dict[str, Any], reason: str) -> None:
    length, dtype = changes.pop("length", 128), changes.pop("dtype", "bfloat16")
    call = aligned_call(changes.pop("mask", Causal()), 1, length, is_packed=True) | changes
    with (
        target_platform("tpu"),
        prefer(attention="splash"),
        pytest.raises(ValueError, match=reason),
    ):
        jax.eval_shape(partial(attention, **call), *arrays(1, length, length, 2, 2, 16, dtype))


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"sequence": 8, "fsdp": 1}, "the sequence is sharded over devices"),
        ({"fsdp": 8}, "4 rows of the batch do not divide over 8 devices"),
        ({"fsdp": 2, "model": 4}, "2 KV heads do not divide over 4 devices"),
    ],
)
def test_refusals_under_a_mesh(sizes: dict[str, int], reason: str) -> None:
    placement = Placement(MeshLayout.Config(**sizes).build().mesh(), AxisRules.Config().build())
    call = record(arrays(4, 128, 128, 4, 2, 16), aligned_call(Causal(), 4, 128, is_packed=True))
    with target_platform("tpu"), use_placement(placement):
        refusal = attention_op.named("splash").refusal("tpu", call)
    assert refusal == reason


def test_it_is_what_a_tpu_runs() -> None:
    clear_choices()
    call = aligned_call(Causal(), 1, 256, is_packed=True)
    with target_platform("tpu"):
        jax.eval_shape(partial(attention, **call), *arrays(1, 256, 256, 2, 2, 16))
    assert choices() == ["attention: splash (tpu)"]


@pytest.mark.parametrize(
    ("sequence", "width", "itemsize", "block"),
    [(4096, 128, 2, 512), (640, 128, 2, 128), (768, 64, 2, 384), (4096, 512, 4, 256)],
)
def test_blocks_divide_the_sequence_and_fit(
    sequence: int, width: int, itemsize: int, block: int
) -> None:
    assert block_size(sequence, width, itemsize) == block
