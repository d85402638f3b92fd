"""A scaled branch, in every joint: the factor must reach the sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import replace, select
from dovetail.layers import Dropout, NormedResidual, Pattern, PreNorm, Stack
from dovetail.layers.residual.branch import BranchNorm
from dovetail.layers.residual.post import PostNorm
from dovetail.layers.residual.sandwich import SandwichNorm
from dovetail.layers.residual.scaled import ScaledBranch, branches_of, with_scaled_branches
from dovetail.module import functional
from tests.layers.cases import WIDTH, alternating, block, random_params, vectors

FACTOR = 0.25


def rms(x: np.ndarray, scale: Any) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * np.asarray(scale)


# What each joint returns, given stream, branch and parameters.
EXPECTED = {
    PreNorm: lambda x, b, p: x + FACTOR * b,
    PostNorm: lambda x, b, p: rms(x + FACTOR * b, p["norm/scale"]),
    BranchNorm: lambda x, b, p: x + FACTOR * rms(b, p["norm/scale"]),
    SandwichNorm: lambda x, b, p: x + FACTOR * rms(b, p["output_norm/scale"]),
}


def test_all_joints_are_here() -> None:
    assert set(NormedResidual.__subclasses__()) == set(EXPECTED)


@pytest.mark.parametrize("joint", EXPECTED)
def test_the_factor_reaches_the_sum(joint: Any) -> None:
    scaled = joint.Config(width=WIDTH, dropout=ScaledBranch.Config(factor=FACTOR)).build()
    params, x, branch = random_params(scaled), vectors(1), vectors(2)
    result, _ = functional(scaled, params, (x, branch), method="after")
    expected = EXPECTED[joint](np.asarray(x), np.asarray(branch), params)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_dropout_stays() -> None:
    branch = ScaledBranch.Config(factor=FACTOR, dropout=Dropout.Config(rate=0.5)).build()
    x = jnp.ones((4, 100))
    result, _ = functional(branch, {}, x, key=jax.random.key(0), training=True)
    assert set(np.unique(result)) == {0.0, 2 * FACTOR}


def test_branches_are_counted_through_stacks_and_patterns() -> None:
    assert branches_of(block()) == 2
    assert branches_of(Stack.Config(num_layers=5, layer=block())) == 10
    hybrid = Pattern.Config(layers=(Stack.Config(num_layers=3, layer=alternating()), block()))
    assert branches_of(hybrid) == 14


def test_another_joint_keeps_the_factor() -> None:
    scaled = with_scaled_branches(block(), FACTOR)
    moved = replace(scaled, NormedResidual, PostNorm.Config())
    assert len(select(moved, PostNorm)) == 2
    assert [found.factor for found in select(moved, ScaledBranch)] == [FACTOR, FACTOR]
