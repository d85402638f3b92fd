"""DoRA: what it computes, where it starts, and what merging gives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import replace, select
from dovetail.features import NotApplicable
from dovetail.interop import unwrapped
from dovetail.layers import Linear
from dovetail.layers.linear.adapters import DoRA
from dovetail.layers.linear.linear import NormedLinear
from dovetail.layers.moe import TopKRouter
from dovetail.learner import select_trainable
from dovetail.module import functional, initialize, parameter_specs
from tests.features.representatives import every_representative, tiny
from tests.layers.cases import random_params, vectors

SIZES = {"in_features": 16, "out_features": 6}


def adapted(base: Any, **values: Any) -> Any:
    return replace(base.set(**SIZES), Linear, DoRA.Config(**values)).build()


def combined(params: Any, scale: float) -> Any:
    """The weight of the paper: m (W + s a b) / |W + s a b|, where m is relative to |W|."""
    weight = np.asarray(params["weight"], np.float64)
    summed = weight + scale * np.asarray(params["dora_a"]) @ np.asarray(params["dora_b"])
    length = np.linalg.norm(weight, axis=0) * (1 + np.asarray(params["dora_magnitude"]))
    return length * summed / np.linalg.norm(summed, axis=0)


@pytest.mark.parametrize("bias", [False, True])
def test_it_multiplies_by_a_length_and_a_direction(bias: bool) -> None:
    base = Linear.Config(bias=bias, **SIZES)
    module, x = adapted(base, rank=2, alpha=3.0), vectors()
    params = random_params(module)
    expected = np.asarray(x) @ combined(params, 1.5) + (np.asarray(params["bias"]) if bias else 0)
    found = functional(module, params, (x,))[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    own = {name: np.asarray(params[name]) for name in params if name.startswith("dora_")}
    merged = {
        name: jnp.asarray(module.merged(name, np.asarray(params[name]), own))
        for name in params.keys() - own.keys()
    }
    np.testing.assert_allclose(functional(base.build(), merged, (x,))[0], expected, atol=1e-5)


def test_at_first_it_changes_nothing() -> None:
    module, x = adapted(Linear.Config()), vectors()
    params = initialize(module, jax.random.key(0))
    plain = functional(Linear.Config(**SIZES).build(), {"weight": params["weight"]}, (x,))[0]
    np.testing.assert_array_equal(functional(module, params, (x,))[0], plain)


def test_no_gradient_goes_through_the_norm() -> None:
    module, x = adapted(Linear.Config(), rank=2, alpha=2.0), vectors()
    params = random_params(module)
    found = jax.grad(lambda params: functional(module, params, (x,))[0].sum())(params)
    weight, a, b = (np.asarray(params[name]) for name in ("weight", "dora_a", "dora_b"))
    length = np.linalg.norm(weight, axis=0) * (1 + np.asarray(params["dora_magnitude"]))
    gain = length / np.linalg.norm(weight + a @ b, axis=0)
    rows = np.asarray(x).reshape(-1, 16).sum(0)
    np.testing.assert_allclose(found["dora_b"], np.outer(rows @ a, gain), rtol=1e-4)


def test_inside_a_norm_it_wraps_the_linear_map() -> None:
    module = adapted(NormedLinear.Config(group=3), rank=2)
    assert {"dora_a", "dora_b", "dora_magnitude"} <= parameter_specs(module).keys()


def test_a_column_of_zeros_stays_one() -> None:
    module = adapted(Linear.Config())
    params = jax.tree.map(jnp.zeros_like, random_params(module))
    result = functional(module, params, (vectors(),))[0]
    assert not result.any()


@every_representative
def test_only_the_adapters_are_trained(name: str) -> None:
    config = tiny(name, "dora:rank=2")
    assert unwrapped(config.model) == tiny(name).model
    routers = select(config, TopKRouter).found
    alone = {path for path in select(config, Linear).found if not path.endswith(".base")}
    assert all(any(path.startswith(f"{router}.") for router in routers) for path in alone)
    trained = select_trainable(parameter_specs(config.build().model), config.learner.frozen).specs
    assert trained
    assert all("/dora_" in path for path in trained)
    for both in (("lora", "dora"), ("dora", "lora"), ("dora", "dora")):
        with pytest.raises(NotApplicable, match="is Adapter already"):
            tiny(name, *both)
