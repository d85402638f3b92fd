"""Repeated steps: every simulated fault is noticed and its device named; nothing else is."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dovetail.config import ConfigError
from dovetail.runtime import Agreement, CorruptResult, RepeatSteps
from dovetail.runtime.digest import read_shard_digests, shard_digests
from dovetail.runtime.sdc.reordering import copy_in_order, mesh_in_order, rolled
from tests.runtime.sdc.faulty import FaultyDevice, flip

SPECS = {"params": {"w": P(None, "fsdp"), "b": P()}, "step": P()}
WIDTH = 48


def make_mesh(*shape: int) -> Mesh:
    devices = jax.devices()[: math.prod(shape)]
    return jax.make_mesh(shape, ("data", "fsdp"), (AxisType.Auto,) * 2, devices=devices)


def place(value: Any, mesh: Mesh, spec: P) -> jax.Array:
    return jax.device_put(value, NamedSharding(mesh, spec))


def compile_on(mesh: Mesh) -> Any:
    def step(state: Any, batch: jax.Array, rate: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.mean(jnp.square(jnp.tanh(batch @ params["w"]) + params["b"] - 1))

        value, grads = jax.value_and_grad(loss)(state["params"])
        params = jax.tree.map(lambda p, g: p - rate * g, state["params"], grads)
        return {"params": params, "step": state["step"] + 1}, {"loss": value}

    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), SPECS)
    arguments = shapes = (state_of(mesh), batch_of(mesh), rate_of(mesh))
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), arguments
    )
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))
    return jitted.lower(*shapes).compile()


def state_of(mesh: Mesh) -> Any:
    random = np.random.default_rng(0)
    values = {
        "params": {
            "w": random.normal(size=(WIDTH, WIDTH)).astype(np.float32),
            "b": random.normal(size=WIDTH).astype(np.float32),
        },
        "step": np.int32(0),
    }
    return jax.tree.map(lambda value, spec: place(value, mesh, spec), values, SPECS)


def batch_of(mesh: Mesh, number: int = 0) -> jax.Array:
    values = np.random.default_rng(number).normal(size=(24, WIDTH)).astype(np.float32)
    return place(values, mesh, P(("data", "fsdp")))


def rate_of(mesh: Mesh) -> jax.Array:
    return place(np.float32(0.1), mesh, P())


def run_check(mesh: Mesh, fault: FaultyDevice | None = None, **config: Any) -> Any:
    """Checks step 1; returns its result, and what was found."""
    check = RepeatSteps.Config(every=1, **config).build()
    wrap = fault.wrap if fault is not None else lambda step: step
    check.start(0, Agreement(), lambda other: wrap(compile_on(other)))
    arguments = (state_of(mesh), batch_of(mesh), rate_of(mesh))
    return check.run(1, wrap(compile_on(mesh)), arguments)


SHAPES = [(2, 4), (8, 1), (1, 8), (4, 2), (1, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("path", ["w", None], ids=["in its shard", "in its batch"])
def test_a_lasting_fault_is_noticed_and_its_device_named(shape: Any, path: str | None) -> None:
    mesh = make_mesh(*shape)
    device = mesh.devices.flat[-2]
    (state, _), found = run_check(mesh, FaultyDevice(device, path))
    assert found is not None
    assert found.persists
    assert [name.partition(" on ")[0] for name in found.devices] == [
        f"cpu:{device.id} (process 0"
    ], found.message
    assert found.message.startswith("Step 1 gave two results from the same state and batch; ")
    assert f"cpu:{device.id} (process 0 on " in found.message
    assert state["params"]["w"].is_deleted(), "a suspect state cannot be used by mistake"


@pytest.mark.parametrize("call", [1, 2], ids=["in the repeat", "in the step"])
def test_a_passing_fault_is_noticed_and_its_device_named(call: int) -> None:
    mesh = make_mesh(2, 4)
    _, found = run_check(mesh, FaultyDevice(mesh.devices.flat[5], "w", [call]))
    assert found is not None
    assert not found.persists
    assert [name.split()[0] for name in found.devices] == ["cpu:5"]
    assert "params/w differs" in found.message


def test_a_passing_fault_that_spread_is_noticed() -> None:
    mesh = make_mesh(2, 4)
    _, found = run_check(mesh, FaultyDevice(mesh.devices.flat[5], None, [2]))
    assert found is not None
    assert not found.persists
    assert found.devices == ()
    assert "It is unknown which device is at fault" in found.message


def test_without_rolling_a_lasting_fault_repeats_itself() -> None:
    """The reason to roll."""
    mesh = make_mesh(2, 4)
    _, found = run_check(mesh, FaultyDevice(mesh.devices.flat[5], None), roll=False)
    assert found is None
    _, found = run_check(mesh, FaultyDevice(mesh.devices.flat[5], "w", [2]), roll=False)
    assert isinstance(found, CorruptResult)
    assert [name.split()[0] for name in found.devices] == ["cpu:5"]


def test_one_device_repeats_the_step() -> None:
    mesh = make_mesh(1, 1)
    assert run_check(mesh)[1] is None
    _, found = run_check(mesh, FaultyDevice(mesh.devices.flat[0], "w", [2]))
    assert found is not None
    assert [name.split()[0] for name in found.devices] == ["cpu:0"]


@pytest.mark.parametrize(
    ("shape", "path", "suspects"),
    [
        ((2, 4), "b", ["cpu:3"]),
        ((4, 2), "w", ["cpu:3"]),
        ((2, 4), "w", ["cpu:3", "cpu:7"]),  # two copies: no majority
    ],
)
def test_a_copy_that_differs_is_noticed(shape: Any, path: str, suspects: list[str]) -> None:
    """A bit of the state flips in the memory of one device, and every computation is right."""
    mesh = make_mesh(*shape)
    check = RepeatSteps.Config(every=1).build()
    check.start(7, Agreement(), compile_on)
    state = state_of(mesh)
    state["params"][path] = flip(state["params"][path], mesh.devices.flat[3])
    arguments = (state, batch_of(mesh), rate_of(mesh))
    (state, _), found = check.run(8, compile_on(mesh), arguments)
    assert int(state["step"]) == 1
    assert found is not None
    assert found.message.startswith(f"Before step 8, the copies of params/{path} differ")
    assert [name.split()[0] for name in found.devices] == suspects
    assert found.verified == 7


def test_copies_that_differ_after_the_step_are_noticed() -> None:
    """A device reads a wrong hyperparameter, in the step and in its repeat."""
    mesh = make_mesh(2, 4)
    check = RepeatSteps.Config(every=1).build()
    check.start(7, Agreement(), compile_on)
    arguments = (state_of(mesh), batch_of(mesh), flip(rate_of(mesh), mesh.devices.flat[3]))
    _, found = check.run(8, compile_on(mesh), arguments)
    assert found is not None
    assert found.message.startswith("After step 8, the copies of params/w differ")


@pytest.mark.parametrize("shape", [(2, 4), (8, 1), (1, 8)])
def test_healthy_devices_are_never_accused(shape: Any) -> None:
    """The result is that of the step alone, and the state is not copied more often than once."""
    mesh = make_mesh(*shape)
    check = RepeatSteps.Config(every=2).build()
    check.start(0, Agreement(), compile_on)
    step, state, expected = compile_on(mesh), state_of(mesh), state_of(mesh)
    for number in range(1, 41):
        arguments = (state, batch_of(mesh, number), rate_of(mesh))
        if check.due(number):
            (state, _), found = check.run(number, step, arguments)
            assert found is None, found
        else:
            state, _ = step(*arguments)
        expected, _ = step(expected, batch_of(mesh, number), rate_of(mesh))
    assert read_shard_digests(shard_digests(state)) == read_shard_digests(shard_digests(expected))


def test_every_device_gets_the_work_of_another() -> None:
    mesh = make_mesh(2, 4)
    order = rolled(mesh)
    assert order == (1, 2, 3, 0, 5, 6, 7, 4), "along the longest axis"
    state = state_of(mesh)
    state["params"]["b"] = flip(state["params"]["b"], mesh.devices.flat[3])
    before = jax.tree.map(lambda x: [np.asarray(s.data) for s in x.addressable_shards], state)
    copies = copy_in_order(state, order)
    jax.tree.map(lambda leaf: leaf.delete(), state)
    there = mesh_in_order(mesh, order)
    for path in ("w", "b"):
        moved = {s.device: np.asarray(s.data) for s in copies["params"][path].addressable_shards}
        for position, device in enumerate(there.devices.flat):
            np.testing.assert_array_equal(moved[device], before["params"][path][position])


def test_it_never_checks_by_default() -> None:
    check = RepeatSteps.Config().build()
    assert not any(check.due(step) for step in range(1, 1000))
    with pytest.raises(ConfigError, match=r"step_check\.every: expected 1 or more, got 0"):
        RepeatSteps.Config(every=0).build()
