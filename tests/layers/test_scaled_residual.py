"""Scaled residual connections: the factor must reach the sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import replace, select
from dovetail.layers import BaseResidual, Dropout, Pattern, PreNorm, Stack
from dovetail.layers.residual import OutputNorm, PostNorm, SandwichNorm
from dovetail.layers.scaled_residual import ScaledResidual, count_residuals, with_scaled_residuals
from dovetail.module import functional
from tests.layers.cases import WIDTH, alternating, block, random_params, vectors

FACTOR = 0.25


def rms(x: np.ndarray, scale: Any) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * np.asarray(scale)


# The output of each residual connection, given residual stream, sublayer output and parameters.
EXPECTED = {
    PreNorm: lambda x, b, p: x + FACTOR * b,
    PostNorm: lambda x, b, p: rms(x + FACTOR * b, p["norm/scale"]),
    OutputNorm: lambda x, b, p: x + FACTOR * rms(b, p["norm/scale"]),
    SandwichNorm: lambda x, b, p: x + FACTOR * rms(b, p["output_norm/scale"]),
}


def test_all_residuals_are_here() -> None:
    assert set(BaseResidual.__subclasses__()) == set(EXPECTED)


@pytest.mark.parametrize("residual", EXPECTED)
def test_the_factor_reaches_the_sum(residual: Any) -> None:
    scaled = residual.Config(width=WIDTH, dropout=ScaledResidual.Config(factor=FACTOR)).build()
    params, x, output = random_params(scaled), vectors(1), vectors(2)
    result, _ = functional(scaled, params, (x, output), method="after")
    expected = EXPECTED[residual](np.asarray(x), np.asarray(output), params)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_dropout_stays() -> None:
    output = ScaledResidual.Config(factor=FACTOR, dropout=Dropout.Config(rate=0.5)).build()
    x = jnp.ones((4, 100))
    result, _ = functional(output, {}, x, key=jax.random.key(0), training=True)
    assert set(np.unique(result)) == {0.0, 2 * FACTOR}


def test_outputes_are_counted_through_stacks_and_patterns() -> None:
    assert count_residuals(block()) == 2
    assert count_residuals(Stack.Config(num_layers=5, layer=block())) == 10
    hybrid = Pattern.Config(layers=(Stack.Config(num_layers=3, layer=alternating()), block()))
    assert count_residuals(hybrid) == 14


def test_another_residual_keeps_the_factor() -> None:
    scaled = with_scaled_residuals(block(), FACTOR)
    moved = replace(scaled, BaseResidual, PostNorm.Config())
    assert len(select(moved, PostNorm)) == 2
    assert [found.factor for found in select(moved, ScaledResidual)] == [FACTOR, FACTOR]
