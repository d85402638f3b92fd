"""Mamba-2 against its recurrence, token by token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.layers import TokenContext
from dovetail.layers.recurrent.mamba2 import Mamba2
from dovetail.module import functional, initialize
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

WIDTH, HEADS, GROUPS, STATE = 8, 4, 2, 3


def mamba(**fields: object) -> Mamba2.Config:
    config = Mamba2.Config(width=WIDTH, num_heads=HEADS, num_groups=GROUPS, state_width=STATE)
    return config.set(**fields)


@by_segment
def recurrence(p: Params, x_SE: Array) -> Array:
    def read(name: str) -> Array:
        convolution = f"{name}_convolution"
        maps = p[f"{convolution}/weight"], p[f"{convolution}/bias"]
        return convolved(x_SE @ p[f"{name}/weight"], *maps)

    value = read("value").reshape(len(x_SE), HEADS, -1)
    key, query = (read(name).reshape(len(x_SE), GROUPS, STATE) for name in ("key", "query"))
    step = softplus(x_SE @ p["decay/projection/weight"] + p["decay/step_bias"])
    mixed = np.zeros_like(value)
    for h in range(HEADS):
        group, rate = h // (HEADS // GROUPS), np.exp(p["decay/log_rate"][h])
        state = np.zeros((value.shape[-1], STATE))
        for s in range(len(x_SE)):
            state = np.exp(-rate * step[s, h]) * state
            state = state + step[s, h] * np.outer(value[s, h], key[s, group])
            mixed[s, h] = state @ query[s, group] + p["skip"][h] * value[s, h]
    gated = mixed.reshape(len(x_SE), -1) * silu(x_SE @ p["gate/weight"])
    return rms_norm(gated, p["norm/scale"], 1e-6) @ p["output/weight"]


@pytest.mark.parametrize("chunk_length", [4, 5, 64])
def test_values_and_gradients_are_those_of_the_recurrence(chunk_length: int) -> None:
    check_values_and_gradients(mamba(chunk_length=chunk_length), recurrence, WIDTH)


def test_memory_of_the_backward_pass_is_linear_in_the_sequence() -> None:
    module = mamba(chunk_length=16).build()

    def kept(length: int) -> int:
        params = jax.eval_shape(lambda: initialize(module, jax.random.key(0)))
        x = jax.ShapeDtypeStruct((1, length, WIDTH), jnp.float32)
        index = jnp.arange(length)[None]
        context = TokenContext(index, jnp.ones_like(index))
        backward = jax.eval_shape(
            lambda p, x: jax.vjp(lambda p, x: functional(module, p, (x, context))[0], p, x)[1],
            params,
            x,
        )
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    short, middle, long = (kept(16 * chunks) for chunks in (2, 4, 6))
    assert long - middle == middle - short


def test_initial_steps_and_rates_are_in_their_ranges() -> None:
    """Steps begin between 1e-3 and 1e-1, rates between 1 and 16."""
    params = initialize(mamba(num_heads=64, num_groups=1).build(), jax.random.key(0))
    step = np.log1p(np.exp(params["decay/step_bias"]))
    rate = np.exp(params["decay/log_rate"])
    assert 1e-3 <= step.min() < 5e-3 < 5e-2 < step.max() <= 1e-1 + 1e-6
    assert 1 <= rate.min() < 3 < 12 < rate.max() <= 16


def test_groups_divide_heads() -> None:
    with pytest.raises(ConfigError) as caught:
        mamba(num_groups=3).build()
    assert str(caught.value) == (
        "num_groups: 4 heads do not divide into 3 groups. Choose a divisor of 4."
    )
