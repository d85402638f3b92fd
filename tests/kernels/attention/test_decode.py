"""Decode attention: an op of its own, that says where it is slow, and equals the reference."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels import (
    KernelSettings,
    SlowKernelError,
    SlowKernelWarning,
    choices,
    clear_choices,
    prefer,
    reference_only,
    strict,
    target_platform,
)
from dovetail.kernels.attention import Causal, attention
from tests.kernels.attention.cases import arrays

KEYS = 160


def unaligned(queries: int, first: int = 0) -> dict[str, Any]:
    """Returns the other arguments of a call of consecutive queries against a KV cache."""
    return {
        "mask": Causal(),
        "q_positions_BS": jnp.asarray([np.arange(first, first + queries)] * 2),
        "kv_positions_BT": jnp.asarray([np.arange(KEYS)] * 2),
        "aligned": False,
    }


def trace(queries: int) -> list[str]:
    """Traces a call, and returns the choices."""
    clear_choices()
    call = partial(attention, **unaligned(queries))
    jax.eval_shape(call, *arrays(2, queries, KEYS, 4, 2, 16))
    return choices()


@pytest.mark.parametrize(
    ("queries", "line"),
    [
        (1, "decode_attention: reference (cpu)"),
        (127, "decode_attention: reference (cpu)"),
        (128, "attention: blockwise (cpu)"),
    ],
)
def test_few_queries_against_a_cache_decode_and_a_cpu_does_not_warn(
    queries: int, line: str
) -> None:
    with strict(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trace(queries) == [line]


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_accelerators_warn_once_for_there_is_no_kernel(platform: str) -> None:
    message = f"decode_attention: the slow 'reference' .* runs on {platform}. There is no faster"
    with target_platform(platform):
        with pytest.warns(SlowKernelWarning, match=message):
            lines = trace(1)
        assert lines == [f"decode_attention: reference ({platform})"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jax.eval_shape(partial(attention, **unaligned(2)), *arrays(2, 2, KEYS, 4, 2, 16))
        settings = KernelSettings.Config(strict=True).build()
        refused = pytest.raises(SlowKernelError, match=r"decode_attention.*error\. Leave strict")
        with settings.in_force(), refused:
            trace(1)


def test_a_preference_for_training_does_not_concern_decoding() -> None:
    with prefer(attention="blockwise"):
        assert trace(1) == ["decode_attention: reference (cpu)"]
    with reference_only():
        assert trace(1) == []


def test_it_equals_the_rows_of_all_queries_at_once() -> None:
    query, key, value = arrays(2, KEYS, KEYS, 4, 2, 16)
    at_once = attention(query, key, value, **unaligned(KEYS))
    for first, count in ((0, 1), (77, 1), (100, 9), (KEYS - 1, 1)):
        one = query[:, first : first + count]
        few = attention(one, key, value, **unaligned(count, first))
        np.testing.assert_allclose(few, at_once[:, first : first + count], atol=1e-5)
