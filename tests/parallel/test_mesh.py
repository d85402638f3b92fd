"""The mesh: sizes that fit, the rest by -1, and errors that say what would fit."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf
from dovetail.parallel import MESH_AXES, MeshLayout, max_steps_in_flight


def test_minus_one_takes_all_devices_that_are_left() -> None:
    layout = MeshLayout.Config(data=2, fsdp=-1, model=2).build()
    assert layout.shape(16) == {
        "pipeline": 1,
        "data": 2,
        "fsdp": 4,
        "expert": 1,
        "sequence": 1,
        "model": 2,
    }


def test_a_mesh_over_all_devices_has_auto_axes() -> None:
    mesh = MeshLayout.Config(model=2).build().mesh()
    assert mesh.axis_names == MESH_AXES
    assert mesh.shape["fsdp"] == 4
    assert mesh.shape["model"] == 2
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert set(mesh.devices.flat) == set(jax.devices())


def test_a_mesh_over_given_devices_keeps_their_order() -> None:
    chosen = jax.devices()[4:0:-1]
    mesh = MeshLayout.Config(data=2, fsdp=2).build().mesh(chosen)
    assert list(mesh.devices.flat) == chosen


def test_one_device_is_a_mesh_too() -> None:
    assert MeshLayout.Config().build().mesh(jax.devices()[:1]).size == 1


@pytest.mark.parametrize(
    ("sizes", "devices", "fixed"),
    [
        ({"fsdp": 3}, 8, 3),
        ({"data": 3, "fsdp": -1}, 8, 3),
        ({"data": 16, "fsdp": -1}, 8, 16),
        ({"fsdp": 1}, 8, 1),
    ],
)
def test_a_mesh_that_does_not_fit_the_devices(
    sizes: dict[str, int], devices: int, fixed: int
) -> None:
    layout = MeshLayout.Config(**sizes).build()
    with pytest.raises(ConfigError) as caught:
        layout.shape(devices)
    assert str(caught.value) == (
        f"mesh: {layout} does not fit 8 devices: the fixed sizes multiply to {fixed}. "
        "Choose sizes that multiply to 8, or one -1 for the rest."
    )


@pytest.mark.parametrize("sizes", [{"data": -1}, {"model": 0}, {"fsdp": -2}])
def test_sizes_that_mean_nothing(sizes: dict[str, int]) -> None:
    written = ", ".join(f"{axis}={size}" for axis, size in ({"fsdp": -1} | sizes).items())
    if "data" in sizes:
        written = "data=-1, fsdp=-1"
    with pytest.raises(ConfigError) as caught:
        MeshLayout.Config(**sizes).build()
    assert str(caught.value) == (
        "mesh: expected sizes of 1 or more, and at most one -1 (all remaining devices), "
        f"got {written}."
    )


class Holder(Component):
    class Config(Component.Config["Holder"]):
        layout: ConfigOf[MeshLayout] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layout = config.layout.build()


def test_an_error_names_the_path_of_the_layout() -> None:
    layout = Holder.Config(layout=MeshLayout.Config(fsdp=5)).build().layout
    with pytest.raises(ConfigError, match=r"^layout: fsdp=5 does not fit 8 devices: "):
        layout.mesh()


def test_virtual_devices_of_a_cpu_take_one_step_at_a_time():
    layout = MeshLayout.Config().build()
    assert max_steps_in_flight(layout.mesh(jax.devices())) == 0
    assert max_steps_in_flight(layout.mesh(jax.devices()[:1])) == 2


@dataclass(frozen=True)
class Chip:
    """A device that is not there, with what JAX's devices tell of their place."""

    id: int
    coords: tuple[int, int, int]
    slice_index: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5p"
    core_on_chip: int = 0

    @property
    def process_index(self) -> int:
        return self.id // 8


def chips(*shape: int, slices: int = 1, platform: str = "tpu") -> list[Any]:
    places = list(itertools.product(range(slices), *map(range, shape[::-1])))
    kind = "TPU v5p" if platform == "tpu" else "H100"
    return [
        Chip(index, (x, y, z), number, platform, kind)
        for index, (number, z, y, x) in enumerate(places)
    ]


def slices_along(mesh: Any, axis: str) -> set[int]:
    """Returns how many slices stand along an axis, wherever one looks."""
    axis_last = np.moveaxis(mesh.devices, MESH_AXES.index(axis), -1)
    lines = axis_last.reshape(-1, axis_last.shape[-1])
    return {len({device.slice_index for device in line}) for line in lines}


@pytest.mark.parametrize(
    ("sizes", "dcn"),
    [
        ({"data": 2}, {"data": 2}),
        ({"data": 4, "model": 2}, {"data": 2}),
        ({"pipeline": 2, "data": 2, "sequence": 2}, {"data": 2}),
        ({"pipeline": 2, "model": 4}, {"pipeline": 2}),
        ({"pipeline": 2, "data": 3, "dcn": {"pipeline": 2}}, {"pipeline": 2}),
        ({"dcn": {"fsdp": 2}}, {"fsdp": 2}),
    ],
)
def test_one_axis_spans_slices(sizes: dict[str, Any], dcn: dict[str, int]) -> None:
    devices = chips(2, 2, 6, slices=2)
    mesh = MeshLayout.Config(**sizes).build().mesh(devices)
    for axis in MESH_AXES:
        assert slices_along(mesh, axis) == {dcn.get(axis, 1)}
    assert set(mesh.devices.flat) == set(devices)
    assert mesh.devices.flat[0].slice_index == 0, "the first slice comes first"


def test_four_slices_may_be_crossed_by_two_axes() -> None:
    mesh = MeshLayout.Config(data=2, pipeline=2).build().mesh(chips(2, 2, 1, slices=4))
    assert slices_along(mesh, "data") == slices_along(mesh, "pipeline") == {2}
    assert slices_along(mesh, "fsdp") == {1}


def test_the_order_in_which_slices_are_given_is_no_matter() -> None:
    devices = chips(2, 2, 2, slices=2)
    layout = MeshLayout.Config(data=2, model=2).build()
    assert (layout.mesh(devices[::-1]).devices == layout.mesh(devices).devices).all()


def test_neighbours_on_the_torus_communicate_most() -> None:
    mesh = MeshLayout.Config(fsdp=16, model=4).build().mesh(chips(4, 4, 4))
    rows = mesh.devices.reshape(16, 4)
    for row in rows:
        moved = [len({device.coords[axis] for device in row}) for axis in range(3)]
        assert sorted(moved) == [1, 1, 4], "a whole ring of the torus"


def test_sizes_that_are_no_sides_of_the_torus() -> None:
    mesh = MeshLayout.Config(fsdp=8, model=8).build().mesh(chips(4, 4, 4))
    for row in mesh.devices.reshape(8, 8):
        sides = [len({device.coords[axis] for device in row}) for axis in range(3)]
        assert np.prod(sides) == 8, "a box, which links join"


def test_devices_that_are_no_box_keep_their_order() -> None:
    devices = chips(2, 2, 2)[:3]
    assert list(MeshLayout.Config().build().mesh(devices).devices.flat) == devices
    both = [*chips(2, 2, 1, slices=2)[:3], *chips(2, 2, 1, slices=2)[4:7]]
    mesh = MeshLayout.Config(fsdp=3, data=2).build().mesh(both)
    assert list(mesh.devices.flat) == both


def test_hosts_of_gpus_share_parameters_where_they_must() -> None:
    hosts = chips(8, 1, 1, slices=4, platform="gpu")
    mesh = MeshLayout.Config(fsdp=4, model=8).build().mesh(hosts)
    assert slices_along(mesh, "model") == {1}
    assert slices_along(mesh, "fsdp") == {4}
    mesh = MeshLayout.Config(data=2, fsdp=-1).build().mesh(hosts)
    assert (slices_along(mesh, "data"), slices_along(mesh, "fsdp")) == ({2}, {2})
    layout = MeshLayout.Config(fsdp=4, model=8).build()
    assert layout.abstract_mesh(32, slices=4, any_axis=True).shape["fsdp"] == 4, (
        "as where they are here"
    )


def error_of(layout: MeshLayout.Config, devices: list[Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        layout.build().mesh(devices)
    return str(caught.value)


def test_no_axis_that_may_span_slices() -> None:
    layout = MeshLayout.Config(fsdp=8, model=4)
    expected = (
        "mesh: fsdp=8, model=4 over 2 slices: expected data (or pipeline) to be a multiple of 2, "
        "so that no other axis spans slices, got data=1 and pipeline=1. Set "
        "mesh.data=2, or choose the axis yourself, such as mesh.dcn.fsdp=2."
    )
    assert error_of(layout, chips(4, 4, 1, slices=2)) == expected
    with pytest.raises(ConfigError) as caught:
        layout.build().abstract_mesh(32, slices=2)
    assert str(caught.value) == expected
    assert layout.build().abstract_mesh(32).size == 32, (
        "without a number of slices there is no check"
    )
    asked = MeshLayout.Config(fsdp=8, model=4, dcn={"fsdp": 2}).build()
    assert asked.abstract_mesh(32, slices=2).size == asked.abstract_mesh(32).size == 32


def test_dcn_must_fit_the_slices() -> None:
    devices = chips(2, 2, 2, slices=2)
    assert error_of(MeshLayout.Config(data=4, dcn={"data": 4}), devices) == (
        "mesh.dcn: data=4 is 4 slices, but there are 2. Choose numbers that multiply to 2, "
        "or leave them out."
    )
    assert "but there is 1." in error_of(MeshLayout.Config(dcn={"data": 2}), jax.devices())
    assert error_of(MeshLayout.Config(dcn={"data": 2}), devices) == (
        "mesh.dcn.data: data=1 does not divide over 2 slices. Make mesh.data a multiple of 2, "
        "or choose another axis."
    )
    assert error_of(MeshLayout.Config(dcn={"dta": 2}), devices) == (
        "mesh.dcn: there is no mesh axis 'dta'. Did you mean 'data'?"
    )
    assert error_of(MeshLayout.Config(dcn={"data": 0}), devices) == (
        "mesh.dcn.data: expected 1 or more, got 0."
    )


def test_slices_of_unequal_size() -> None:
    devices = chips(2, 2, 2, slices=2)[:-2]
    assert error_of(MeshLayout.Config(data=2), devices) == (
        "mesh: the slices have 8, 6 devices. A mesh needs slices of equal size: leave some "
        "devices out."
    )
