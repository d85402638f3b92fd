"""Lookup in a sharded table: vectors and gradients of an unsharded one, and NaN beyond its end."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels.embedding_lookup import embedding_lookup
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement

VOCABULARY, WIDTH = 16, 8
MESHES = [
    {"fsdp": 8},
    {"data": 2, "fsdp": 2, "model": 2},
    {"data": 1, "fsdp": 2, "sequence": 2, "model": 2},
    {"data": 2, "fsdp": 1, "expert": 2, "sequence": 2},
]


def tables_and_tokens(rows: int = 8) -> tuple[jax.Array, jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    table = jnp.asarray(random.normal(size=(VOCABULARY, WIDTH)), jnp.float32)
    pull = jnp.asarray(random.normal(size=(rows, 6, WIDTH)), jnp.float32)
    return table, jnp.asarray(random.integers(0, VOCABULARY, size=(rows, 6))), pull


def found(table: jax.Array, tokens: jax.Array, pull: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the vectors, and the gradient of the table."""

    def total(table: jax.Array) -> Any:
        x = embedding_lookup(table, tokens)
        return (x * pull).sum(), x

    gradient, x = jax.grad(total, has_aux=True)(table)
    return x, gradient


def placement_of(mesh: dict[str, int]) -> Placement:
    return Placement(MeshLayout.Config(**mesh).build().mesh(), AxisRules.Config().build())


def split(placement: Placement, table: jax.Array, tokens: jax.Array, *rest: Any) -> Any:
    def run(*arrays: Any) -> Any:
        with use_placement(placement):
            return found(*arrays)

    where = placement.sharding(("vocab", "embed"))
    return jax.jit(run, out_shardings=(None, where))(jax.device_put(table, where), tokens, *rest)


@pytest.mark.parametrize("mesh", MESHES)
def test_sharded_equals_unsharded(mesh: dict[str, int]) -> None:
    arrays = tables_and_tokens()
    for got, expected in zip(split(placement_of(mesh), *arrays), found(*arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mesh", MESHES)
def test_a_token_beyond_the_table_is_not_a_number(mesh: dict[str, int]) -> None:
    table, tokens, pull = tables_and_tokens()
    tokens = tokens.at[3, 2].set(VOCABULARY)
    for x, _ in (found(table, tokens, pull), split(placement_of(mesh), table, tokens, pull)):
        is_missing = np.isnan(x).all(axis=-1)
        assert is_missing[3, 2]
        assert is_missing.sum() == np.isnan(x).any(axis=-1).sum() == 1


def test_tokens_that_do_not_divide() -> None:
    arrays = tables_and_tokens(rows=3)
    for got, expected in zip(split(placement_of(MESHES[1]), *arrays), found(*arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_the_gradient_is_reduce_scattered() -> None:
    placement = placement_of({"data": 2, "fsdp": 4})
    text = str(jax.make_jaxpr(lambda *arrays: split(placement, *arrays))(*tables_and_tokens()))
    assert "reduce_scatter[" in text
