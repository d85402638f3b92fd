"""The mesh: sizes that fit, the rest by -1, and errors that say what would fit."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AxisType

from dovetail.config import REQUIRED, ConfigError, ConfigOf, Part
from dovetail.parallel import MESH_AXES, MeshLayout, steps_ahead


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
        f"mesh: expected sizes of 1 or more, and at most one -1 (all that are left), got {written}."
    )


class Holder(Part):
    class Config(Part.Config["Holder"]):
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
    assert steps_ahead(layout.mesh(jax.devices())) == 0
    assert steps_ahead(layout.mesh(jax.devices()[:1])) == 2
