"""cuDNN's and Triton's attention: arguments, refusals, and the numerics of Triton."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.kernels import SlowKernelWarning, choices, clear_choices, prefer, target_platform
from dovetail.kernels.attention import (
    Causal,
    Full,
    Mask,
    Prefix,
    ScoreMap,
    SlidingWindow,
    SoftCap,
    attention,
)
from dovetail.kernels.attention.gpu import cudnn as cudnn_module
from tests.kernels.attention.cases import aligned_call, arrays
from tests.kernels.attention.compare import TOLERANCES, assert_close, results


@dataclass(frozen=True)
class Doubled(ScoreMap):
    def __call__(self, scores: Any, /) -> Any:
        return 2 * scores


SINKS = jnp.asarray([0.7, -1.5, 3.0, 0.0])


def assert_triton_agrees(
    mask: Mask,
    length: int = 256,
    heads: tuple[int, int] = (4, 2),
    widths: tuple[int, int] = (16, 16),
    dtype: str = "float32",
    is_packed: bool = True,
    sinks: Any = None,
    **options: Any,
) -> None:
    inputs = arrays(2, length, length, *heads, widths[0], dtype, widths[1])
    call = aligned_call(mask, 2, length, is_packed) | options
    got = results("triton", inputs, call, sinks, platform="gpu")
    assert_close(got, results("reference", inputs, call, sinks), TOLERANCES[dtype])


def test_triton_causal_with_segments_and_shared_heads() -> None:
    assert_triton_agrees(Causal())


def test_triton_windows_caps_and_sinks_with_keys_wider_than_values() -> None:
    assert_triton_agrees(
        SlidingWindow(70), widths=(48, 32), score_map=SoftCap(2.0), sinks=SINKS, scale=0.4
    )


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize(
    "mask", [Causal(), Full(), SlidingWindow(30), SlidingWindow(200) & Causal()], ids=str
)
def test_triton_masks_and_types(mask: Mask, is_packed: bool, dtype: str) -> None:
    assert_triton_agrees(mask, is_packed=is_packed, dtype=dtype)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "changes",
    [
        {"length": 128, "heads": (2, 2)},
        {"length": 640, "heads": (4, 1)},
        {"widths": (192, 128), "heads": (2, 2)},
        {"widths": (256, 256), "heads": (2, 1), "dtype": "bfloat16"},
        {"widths": (256, 256), "heads": (2, 1)},
        {"widths": (112, 80)},
        {"sinks": SINKS, "dtype": "bfloat16", "mask": SlidingWindow(128)},
        {"score_map": Doubled(), "mask": Full()},
    ],
    ids=str,
)
def test_triton_shapes_and_maps(changes: dict[str, Any]) -> None:
    changes = dict(changes)
    assert_triton_agrees(changes.pop("mask", Causal()), **changes)


@pytest.mark.parametrize("mask", [Causal(), Full(), SlidingWindow(30)], ids=str)
def test_cudnn_gets_the_right_arguments(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    # JAX's other way to compute the same call needs no GPU.
    monkeypatch.setattr(cudnn_module, "BACKEND", "xla")
    inputs = arrays(2, 128, 128, 4, 2, 16, "bfloat16")
    call = aligned_call(mask, 2, 128, is_packed=False) | {"scale": 0.3}
    got = results("cudnn", inputs, call, platform="gpu")
    assert_close(got, results("reference", inputs, call), TOLERANCES["bfloat16"])


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("cudnn", {"is_packed": True}, "JAX passes no segment ids to cuDNN"),
        ("cudnn", {"dtype": "float32"}, "it takes bfloat16 or float16, not float32"),
        ("cudnn", {"width": 20}, "a multiple of 8 up to 128, not 20 and 20"),
        ("cudnn", {"score_map": SoftCap(3.0)}, "it supports no score map"),
        ("triton", {"length": 200}, "a sequence of 200 is no multiple of 128"),
        ("triton", {"width": 24}, "a width of 24 is no multiple of 16 up to 256"),
        ("triton", {"width": 272}, "a width of 272 is no multiple of 16 up to 256"),
        ("triton", {"mask": Causal() | Prefix(3)}, "is no band around the diagonal"),
        ("triton", {"aligned": False}, "queries and keys are not the same tokens"),
    ],
)
def test_every_refusal_has_a_reason(
    name: str, changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise the reason is that cuDNN is not installed.
    monkeypatch.setattr(cudnn_module, "BACKEND", "xla")
    length, width = changes.pop("length", 128), changes.pop("width", 32)
    inputs = arrays(1, length, length, 2, 2, width, changes.pop("dtype", "bfloat16"))
    mask, is_packed = changes.pop("mask", Causal()), changes.pop("is_packed", False)
    call = aligned_call(mask, 1, length, is_packed) | changes
    with (
        target_platform("gpu"),
        prefer(attention=name),
        pytest.raises(ValueError, match=reason),
    ):
        jax.eval_shape(partial(attention, **call), *inputs)


def test_packed_rows_go_to_triton_and_odd_masks_to_a_slow_one_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cudnn_module, "BACKEND", "xla")
    clear_choices()
    inputs = arrays(1, 128, 128, 2, 2, 16, "bfloat16")
    with target_platform("gpu"):
        for is_packed in (False, True):
            call = aligned_call(SlidingWindow(9), 1, 128, is_packed)
            jax.eval_shape(partial(attention, **call), *inputs)
        call = aligned_call(Causal() | Prefix(3), 1, 128, is_packed=True)
        with pytest.warns(SlowKernelWarning, match=r"'blockwise' .* gpu.*Not triton, because"):
            jax.eval_shape(partial(attention, **call), *inputs)
    assert [line.split(" (")[0] for line in choices()] == [
        "attention: cudnn",
        "attention: triton",
        "attention: blockwise",
    ]
