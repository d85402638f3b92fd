"""Chunks of a ring by kernels for accelerators, interpreted, against what one device computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.kernels import (
    SlowKernelError,
    SlowKernelWarning,
    choices,
    clear_choices,
    prefer,
    reference_only,
    strict,
    target_platform,
)
from dovetail.kernels.attention import (
    Causal,
    Full,
    Mask,
    Prefix,
    SlidingWindow,
    SoftCap,
    attention,
)
from dovetail.parallel import use_placement
from tests.kernels.attention.cases import aligned_call, arrays
from tests.kernels.attention.compare import TOLERANCES, assert_close, results
from tests.kernels.attention.test_context_parallel import placement_of

# Two chunks of 128 tokens on each of four devices.
LENGTH = 1024
PLATFORMS = {"triton": "gpu", "pallas": "tpu"}


def assert_a_ring_agrees(
    platform: str,
    mask: Mask,
    is_packed: bool = True,
    dtype: str = "float32",
    sinks: Any = None,
    **options: Any,
) -> None:
    inputs = arrays(2, LENGTH, LENGTH, 2, 1, 16, dtype)
    call = aligned_call(mask, 2, LENGTH, is_packed) | options
    expected = results("reference", inputs, call, sinks)
    clear_choices()
    with use_placement(placement_of(data=2, sequence=4)):
        got = results("ring", inputs, call, sinks, platform=platform)
    kernel = next(name for name, where in PLATFORMS.items() if where == platform)
    assert choices()[-1] == f"attention_chunk: {kernel} ({platform})"
    assert_close(got, expected, TOLERANCES[dtype])


@pytest.mark.parametrize(
    "mask", [Causal(), SlidingWindow(300), pytest.param(Full(), marks=pytest.mark.sweep)], ids=str
)
@pytest.mark.parametrize("platform", PLATFORMS.values())
def test_it_is_what_one_device_computes(platform: str, mask: Mask) -> None:
    assert_a_ring_agrees(platform, mask)


@pytest.mark.parametrize("platform", PLATFORMS.values())
def test_caps_sinks_and_no_segments(platform: str) -> None:
    sinks = jnp.asarray([0.7, -1.5])
    cap = SoftCap(2.0)
    assert_a_ring_agrees(platform, Causal(), is_packed=False, sinks=sinks, score_map=cap)


@pytest.mark.sweep
@pytest.mark.parametrize("platform", PLATFORMS.values())
def test_in_bfloat16(platform: str) -> None:
    assert_a_ring_agrees(platform, Causal(), dtype="bfloat16")


@pytest.mark.parametrize("platform", PLATFORMS.values())
def test_refusals_are_recorded(platform: str) -> None:
    kernel = next(name for name, where in PLATFORMS.items() if where == platform)
    assert chosen(platform, Causal(), LENGTH) == f"{kernel} ({platform})"
    with pytest.warns(SlowKernelWarning, match="slow 'reference'"):
        assert "no band" in chosen(platform, Causal() | Prefix(20), LENGTH)
    short = "a ring's chunk of 64 tokens, where each device has 128, is no multiple of 128"
    with pytest.warns(SlowKernelWarning, match="slow 'reference'"):
        assert short in chosen(platform, Causal(), LENGTH // 2)


@pytest.mark.parametrize("platform", PLATFORMS.values())
def test_strict_refuses_slow_chunks_unless_they_are_preferred(platform: str) -> None:
    with strict(), pytest.raises(SlowKernelError, match="attention_chunk"):
        chosen(platform, Causal(), LENGTH // 2)
    with strict(), prefer(attention_chunk="reference"):
        assert "reference" in chosen(platform, Causal(), LENGTH // 2)


def chosen(platform: str, mask: Mask, length: int) -> str:
    """Returns what computes the chunks of a ring, and why nothing faster does."""
    clear_choices()
    call = aligned_call(mask, 2, length, is_packed=False)
    inputs = arrays(2, length, length, 2, 1, 16)
    there = use_placement(placement_of(data=2, sequence=4)), target_platform(platform)
    with there[0], there[1], prefer(attention="ring"):
        jax.eval_shape(lambda *a: attention(*a, **call), *inputs)
    return choices()[-1].removeprefix("attention_chunk: ")


def test_every_op_can_be_computed_plainly() -> None:
    """MFU counts the FLOPs of every op's reference, chunks of a ring included."""
    with reference_only():
        pass  # an op without a reference is an error at once
