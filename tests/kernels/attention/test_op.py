"""The attention op: which implementation runs, and calls that make no sense."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.kernels import (
    SlowKernelWarning,
    choices,
    clear_choices,
    strict,
    target_platform,
)
from dovetail.kernels.attention import Causal, Full, attention
from tests.kernels.attention.cases import aligned_call, arrays


@pytest.mark.parametrize(
    ("length", "line"),
    [
        (16, "attention: reference (cpu; not blockwise, because 16 queries are too few to split)"),
        (128, "attention: blockwise (cpu)"),
        (8192, "attention: blockwise (cpu)"),
    ],
)
def test_the_choice_follows_the_length_and_is_never_slow(length: int, line: str) -> None:
    clear_choices()
    with strict(), warnings.catch_warnings():
        warnings.simplefilter("error")
        call = aligned_call(Causal(), 1, length, is_packed=False)
        jax.eval_shape(partial(attention, **call), *arrays(1, length, length, 2, 2, 4))
    assert choices() == [line]


def test_every_platform_has_an_implementation() -> None:
    clear_choices()
    for platform, name in (("tpu", "splash"), ("gpu", "triton"), ("another", "blockwise")):
        warns = pytest.warns(SlowKernelWarning, match="'blockwise' implementation runs on another")
        with target_platform(platform), warns if name == "blockwise" else nullcontext():
            call = aligned_call(Full(), 1, 128, is_packed=True)
            jax.eval_shape(partial(attention, **call), *arrays(1, 128, 128, 2, 2, 16))
        assert choices()[-1].startswith(f"attention: {name} ({platform}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": (3, 2)}, r"multiple of KV heads, got 3 and 2"),
        ({"keys": 9}, r"as many keys as queries.*got 8 queries and 9 keys"),
        ({"kv_segment_ids_BT": None}, r"segment ids of both .* got those of queries only"),
        ({"q_segment_ids_BS": None}, r"segment ids of both .* got those of keys only"),
        (
            {"q_positions_BS": jnp.zeros((1, 8))},
            r"q_positions_BS of shape \(1, 8\) and int",
        ),
        (
            {"kv_positions_BT": jnp.zeros(8, int)},
            r"kv_positions_BT of shape \(1, 8\).*got \(8,\)",
        ),
        ({"value_heads": 1}, r"k and v of one shape but for the width.*\(1, 8, 1, 4\)"),
        ({"key_width": 5}, r"k with the batch and width of q.*k \(1, 8, 2, 5\)"),
        ({"sinks_H": jnp.zeros(3)}, r"sinks_H of shape \(2,\) and floats, got \(3,\) float32"),
        ({"sinks_H": jnp.zeros(2, int)}, r"sinks_H of shape \(2,\) and floats, got \(2,\) int32"),
    ],
)
def test_calls_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    heads, kv_heads = changes.pop("heads", (2, 2))
    keys, key_width = changes.pop("keys", 8), changes.pop("key_width", 4)
    query = jnp.zeros((1, 8, heads, 4))
    key = jnp.zeros((1, keys, kv_heads, key_width))
    value = jnp.zeros((1, keys, changes.pop("value_heads", kv_heads), 4))
    ones = jnp.ones((1, 8), jnp.int32)
    call = aligned_call(Causal(), 1, 8, is_packed=False)
    call |= {"q_segment_ids_BS": ones, "kv_segment_ids_BT": ones} | changes
    with pytest.raises(ValueError, match=r"^attention: expected .*" + message):
        attention(query, key, value, **call)
