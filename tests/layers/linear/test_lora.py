"""LoRA: parameter paths, the update, and merging."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, replace
from dovetail.layers import Linear
from dovetail.layers.linear.adapters import LoRA
from dovetail.layers.linear.linear import NormedLinear
from dovetail.module import functional, initialize, parameter_specs
from tests.layers.cases import random_params, vectors

KEY = jax.random.key(0)

SIZES = {"in_features": 16, "out_features": 6}


def adapted(base: Any, **values: Any) -> Any:
    return replace(base.set(**SIZES), Linear, LoRA.Config(**values)).build()


def test_it_adds_a_scaled_product_beside_the_bias() -> None:
    module, x = adapted(Linear.Config(bias=True), rank=2, alpha=3.0), vectors()
    specs = parameter_specs(module)
    assert {path: spec.shape for path, spec in specs.items()} == {
        "bias": (6,),
        "lora_a": (16, 2),
        "lora_b": (2, 6),
        "weight": (16, 6),
    }
    params = random_params(module)
    expected = x @ params["weight"] + params["bias"] + 1.5 * x @ params["lora_a"] @ params["lora_b"]
    np.testing.assert_allclose(functional(module, params, (x,))[0], expected, atol=1e-5)


def test_at_first_it_changes_nothing_and_can_learn() -> None:
    module, x = adapted(Linear.Config()), vectors()
    params = initialize(module, KEY)
    plain = Linear.Config(**SIZES).build()
    alone = {"weight": params["weight"]}
    np.testing.assert_array_equal(
        functional(module, params, (x,))[0], functional(plain, alone, (x,))[0]
    )
    assert not np.any(params["lora_b"])
    deviation = float(np.std(params["lora_a"]))
    assert 0.8 < deviation * np.sqrt(3 * 16) < 1.2, "as PEFT's uniform values: 1 / (3 x fan-in)"


@pytest.mark.parametrize("bias", [False, True])
def test_the_merged_weight_computes_the_same(bias: bool) -> None:
    base = Linear.Config(bias=bias, **SIZES)
    module, x = adapted(base, rank=2), vectors()
    params = random_params(module)
    own = {name: np.asarray(params[name]) for name in ("lora_a", "lora_b")}
    merged = {
        name: jnp.asarray(module.merged(name, np.asarray(value), own))
        for name, value in params.items()
        if name not in own
    }
    np.testing.assert_allclose(
        functional(base.build(), merged, (x,))[0], functional(module, params, (x,))[0], atol=1e-5
    )


def test_merging_is_computed_in_float32_and_keeps_the_type() -> None:
    module = adapted(Linear.Config(), rank=1, alpha=1.0)
    own = {"lora_a": np.full((16, 1), 1e-3), "lora_b": np.full((1, 6), 1e-3)}
    own = {name: array.astype(jnp.bfloat16) for name, array in own.items()}
    merged = module.merged("weight", np.zeros((16, 6), jnp.bfloat16), own)
    assert merged.dtype == jnp.bfloat16
    np.testing.assert_allclose(merged.astype(np.float32), 1e-6, rtol=0.02)


def test_around_a_norm_it_runs_and_cannot_be_merged() -> None:
    config = LoRA.Config(base=NormedLinear.Config(), **SIZES)
    module = config.build()
    assert functional(module, random_params(module), (vectors(),))[0].shape == (4, 6, 6)
    with pytest.raises(ConfigError, match=r"NormedLinear is not a Linear.*Wrap the Lin"):
        module.merged("weight", np.zeros((16, 6)), {})


def test_the_rank_is_a_positive_number() -> None:
    with pytest.raises(ConfigError, match="rank"):
        adapted(Linear.Config(), rank=0)
