"""Gated DeltaNet against its recurrence, token by token."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.layers.recurrent.gated_delta import GatedDelta, _chunk, _GatedDeltaInputs
from tests.layers.recurrent.recurrences import (
    Array,
    Params,
    by_segment,
    check_values_and_gradients,
    convolved,
    silu,
    softplus,
)
from tests.layers.references import rms_norm

WIDTH, HEADS, KEY, VALUE = 8, 2, 3, 4


@by_segment
def recurrence(p: Params, x_SE: Array) -> Array:
    def read(name: str) -> Array:
        result = convolved(x_SE @ p[f"{name}/weight"], p[f"{name}_convolution/weight"])
        return result.reshape(len(x_SE), HEADS, -1)

    def unit(x: Array) -> Array:
        return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True) + 1e-6)

    query, key, value = unit(read("query")) * KEY**-0.5, unit(read("key")), read("value")
    step = softplus(x_SE @ p["decay/projection/weight"] + p["decay/step_bias"])
    alpha = np.exp(-np.exp(p["decay/log_rate"]) * step)
    beta = 1 / (1 + np.exp(-x_SE @ p["strength/weight"]))
    mixed = np.zeros_like(value)
    for h in range(HEADS):
        state = np.zeros((VALUE, KEY))  # equation 10 of the paper
        for s in range(len(x_SE)):
            k, v = key[s, h], value[s, h]
            erased = np.eye(KEY) - beta[s, h] * np.outer(k, k)
            state = state @ (alpha[s, h] * erased) + beta[s, h] * np.outer(v, k)
            mixed[s, h] = state @ query[s, h]
    normed = rms_norm(mixed, p["norm/scale"], 1e-6).reshape(len(x_SE), -1)
    return (normed * silu(x_SE @ p["gate/weight"])) @ p["output/weight"]


@pytest.mark.parametrize("chunk_length", [4, 5, 64])
def test_values_and_gradients_are_those_of_the_recurrence(chunk_length: int) -> None:
    config = GatedDelta.Config(width=WIDTH, num_heads=HEADS, key_width=KEY, value_width=VALUE)
    check_values_and_gradients(config.set(chunk_length=chunk_length), recurrence, WIDTH)


def test_sizes_that_are_left_out() -> None:
    module = GatedDelta.Config(width=64, num_heads=4).build()
    assert (module.key_width, module.value_width) == (12, 24)


@pytest.mark.parametrize("length", [1, 2, 5, 64])
def test_tokens_with_equal_keys_do_not_overflow(length: int) -> None:
    """Each replaces what the one before wrote, so the last is all that is left."""
    key = np.zeros((1, length, 1, KEY), np.float32)
    key[..., 0] = 1
    value = np.random.default_rng(0).normal(size=(1, length, 1, VALUE)).astype(np.float32)
    flat, starts = np.zeros((1, length, 1), np.float32), np.zeros((1, length), bool)
    inputs = _GatedDeltaInputs(*map(jnp.asarray, (key, key, value, flat + 1, flat, starts)))
    state, mixed = _chunk(jnp.ones((1, 1, KEY, VALUE)), inputs)
    np.testing.assert_allclose(mixed, value, atol=1e-5)
    np.testing.assert_allclose(state[0, 0, 0], value[0, -1, 0], atol=1e-5)
    np.testing.assert_allclose(state[0, 0, 1:], 1)
