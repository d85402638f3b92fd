"""The pre-flight check: a device that computes, sends or receives wrong numbers is named."""

from __future__ import annotations

import time
from typing import Any

import jax
import pytest
from jax.sharding import AxisType, Mesh

from dovetail.runtime import Agreement, Preflight, SkipPreflight
from dovetail.runtime.sdc import preflight
from dovetail.runtime.sdc.preflight import faulty_ends
from tests.runtime.sdc.faulty import flip

PRODUCTS, FIRST_AXIS, SECOND_AXIS = range(3)


@pytest.fixture
def mesh() -> Mesh:
    return jax.make_mesh((2, 4), ("data", "fsdp"), (AxisType.Auto,) * 2)


def check(mesh: Mesh) -> Any:
    return Preflight.Config().build().check(mesh, Agreement())


def damage_results(monkeypatch: pytest.MonkeyPatch, output: int, device: jax.Device) -> None:
    """A device has wrong results."""
    program = preflight._program

    def damaged(mesh: Mesh) -> Any:
        def run(*arguments: Any) -> Any:
            results = list(program(mesh)(*arguments))
            results[output] = flip(results[output], device)
            return results

        return run

    monkeypatch.setattr(preflight, "_program", damaged)


@pytest.mark.parametrize("shape", [(2, 4), (8, 1), (1, 8), (2, 2)])
def test_healthy_devices_pass(shape: tuple[int, int]) -> None:
    devices = jax.devices()[: shape[0] * shape[1]]
    mesh = jax.make_mesh(shape, ("data", "fsdp"), (AxisType.Auto,) * 2, devices=devices)
    assert check(mesh) is None


def test_one_device_is_checked_by_its_product(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = jax.make_mesh((1,), ("fsdp",), (AxisType.Auto,), devices=jax.devices()[:1])
    assert check(mesh) is None
    damage_results(monkeypatch, PRODUCTS, jax.devices()[0])
    assert "cpu:0 (process 0 on " in check(mesh).message


def test_a_wrong_product_names_its_device(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    damage_results(monkeypatch, PRODUCTS, mesh.devices.flat[6])
    found = check(mesh)
    assert found.message.startswith("Pre-flight check: cpu:6 (process 0 on ")
    assert "computed a wrong product. Replace the hardware" in found.message
    assert len(found.devices) == 1
    assert found.persists


def test_wrong_numbers_of_one_link_name_both_ends(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_results(monkeypatch, SECOND_AXIS, mesh.devices.flat[6])  # its first row is from cpu:4
    found = check(mesh)
    assert [name.split()[0] for name in found.devices] == ["cpu:4", "cpu:6"]
    assert "numbers sent between cpu:4" in found.message


@pytest.mark.parametrize("position", range(8))
def test_a_device_that_sends_wrong_numbers_is_named(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    inputs = preflight._inputs

    def damaged(mesh: Mesh) -> Any:
        a, b, numbers = inputs(mesh)
        return a, b, flip(numbers, mesh.devices.flat[position])

    monkeypatch.setattr(preflight, "_inputs", damaged)
    found = check(mesh)
    assert [name.split()[0] for name in found.devices] == [f"cpu:{position}"]
    assert "sent or received wrong numbers" in found.message


@pytest.mark.parametrize(
    ("pairs", "ends"),
    [
        ([(0, 1)], [0, 1]),
        ([(0, 1), (1, 1)], [1]),
        ([(0, 3), (1, 3), (2, 3), (3, 3)], [3]),
        ([(3, 0), (3, 1), (3, 2)], [3]),
    ],
)
def test_the_end_of_most_wrong_pairs_is_faulty(pairs: Any, ends: list[int]) -> None:
    assert faulty_ends(pairs) == ends


def test_it_is_quick_once_it_is_compiled(mesh: Mesh) -> None:
    check(mesh)
    started = time.monotonic()
    check(mesh)
    assert time.monotonic() - started < 1


def test_it_can_be_left_out(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    damage_results(monkeypatch, PRODUCTS, mesh.devices.flat[6])
    assert SkipPreflight.Config().build().check(mesh, Agreement()) is None
