"""Kernels under a mesh: each device gets its own shard, also inside another shard_map."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from dovetail.kernels import current_platform, target_platform
from dovetail.kernels.sharded import (
    indivisible,
    is_sharded,
    logical_shard_map,
    mesh_axes,
    num_shards,
)
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement


def placement_of(**sizes: int) -> Placement:
    return Placement(MeshLayout.Config(**sizes).build().mesh(), AxisRules.Config().build())


def test_axes_are_those_that_shard_something() -> None:
    assert (mesh_axes("batch"), num_shards("batch"), is_sharded()) == ((), 1, False)
    with use_placement(placement_of(data=2, fsdp=2, sequence=2)):
        assert mesh_axes("batch") == ("data", "fsdp")
        assert mesh_axes("sequence") == ("sequence",)
        assert mesh_axes("heads") == ()
        assert mesh_axes("batch", "sequence", "embed") == ("data", "fsdp", "sequence")
        assert (num_shards("batch"), num_shards("heads"), is_sharded()) == (4, 1, True)
        assert indivisible("rows", 8, "batch") is None
        assert indivisible("rows", 6, "batch") == "6 rows do not divide over 4 devices"


def test_each_device_gets_its_shard_and_gradients_are_those_of_the_whole() -> None:
    x, weight = jnp.arange(32.0).reshape(8, 4), jnp.arange(1.0, 5.0)
    seen = []

    def scaled(x: jax.Array, weight: jax.Array, nothing: None) -> jax.Array:
        seen.append((x.shape, weight.shape, nothing))
        return x * weight

    def loss(x: jax.Array, weight: jax.Array) -> Any:
        run = logical_shard_map(scaled, (("batch", None), (None,), (None,)), ("batch", None))
        return (run(x, weight, None) ** 2).sum()

    expected = jax.grad(loss, (0, 1))(x, weight)
    with use_placement(placement_of(data=2, fsdp=2, model=2)):
        got = jax.jit(jax.grad(loss, (0, 1)))(x, weight)
    assert ((8, 4), (4,), None) in seen
    assert ((2, 4), (4,), None) in seen
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_inside_a_shard_map_the_other_axes_are_sharded() -> None:
    placement = placement_of(data=4, fsdp=1, model=2)
    seen = []

    def doubled(x: jax.Array) -> jax.Array:
        seen.append((x.shape, mesh_axes("batch", "heads")))
        return 2 * x

    def inner(x: jax.Array) -> jax.Array:
        assert mesh_axes("batch", "heads") == ("model",), "the batch is not sharded in here"
        return logical_shard_map(doubled, (("batch", "heads"),), ("batch", "heads"))(x)

    with use_placement(placement):
        spec = PartitionSpec("data")
        outer = jax.shard_map(
            inner,
            mesh=placement.mesh,
            in_specs=spec,
            out_specs=spec,
            axis_names={"data"},
            check_vma=False,
        )
        x = jnp.arange(32.0).reshape(8, 4)
        np.testing.assert_array_equal(jax.jit(outer)(x), 2 * x)
    assert seen == [((2, 2), ())]


def test_the_platform_is_that_of_the_mesh() -> None:
    with use_placement(placement_of(data=8, fsdp=1)):
        assert current_platform() == "cpu"
        with target_platform("tpu"):
            assert current_platform() == "tpu"


@pytest.mark.parametrize("size", [1, 8])
def test_one_device_needs_no_wrapping(size: int) -> None:
    def function(x: jax.Array) -> jax.Array:
        return x

    mesh = MeshLayout.Config(fsdp=size).build().mesh(jax.devices()[:size])
    with use_placement(Placement(mesh, AxisRules.Config().build())):
        run = logical_shard_map(function, (("batch",),), ("batch",))
    assert (run is function) == (size == 1)
