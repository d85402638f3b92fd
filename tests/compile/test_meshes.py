"""Meshes over the devices of real topologies: who stands beside whom. Nothing is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.parallel import MESH_AXES, MeshLayout
from dovetail.targets import gpu_topology, tpu_topology
from tests.compile.programs import needs_gpu_compiler, needs_tpu_compiler


def along(mesh: Any, axis: str) -> list[Any]:
    """Returns the devices that differ in one axis alone, line by line."""
    moved = np.moveaxis(mesh.devices, MESH_AXES.index(axis), -1)
    return list(moved.reshape(-1, moved.shape[-1]))


@needs_tpu_compiler
def test_data_crosses_slices_and_nothing_else() -> None:
    devices = tpu_topology("v5e:4x4", slices=2)
    mesh = MeshLayout.Config(data=4, fsdp=2, model=4).build().mesh(devices)
    assert set(mesh.devices.flat) == set(devices)
    for axis in ("fsdp", "model"):
        assert all(len({d.slice_index for d in line}) == 1 for line in along(mesh, axis))
    assert all([d.slice_index for d in line] == [0, 0, 1, 1] for line in along(mesh, "data"))
    with pytest.raises(ConfigError, match=r"Set mesh.data=2, or choose .* mesh.dcn.fsdp=2"):
        MeshLayout.Config().build().mesh(devices)
    crossed = MeshLayout.Config(dcn={"fsdp": 2}).build().mesh(devices)
    assert {d.slice_index for d in along(crossed, "fsdp")[0]} == {0, 1}


@needs_tpu_compiler
@pytest.mark.parametrize("name", ["v5p:4x4x4", "v5p:2x2x4", "v5e:8x8", "v6e:4x4", "v4:2x2x2"])
@pytest.mark.parametrize("model", [2, 4])
def test_the_devices_of_an_axis_are_a_box_of_the_torus(name: str, model: int) -> None:
    mesh = MeshLayout.Config(data=2, model=model).build().mesh(tpu_topology(name))
    for line in along(mesh, "model"):
        places = np.array([(*device.coords, device.core_on_chip) for device in line])
        sides = places.max(axis=0) - places.min(axis=0) + 1
        assert np.prod(sides) == model


@needs_tpu_compiler
def test_the_two_devices_of_a_chip_share_layers() -> None:
    mesh = MeshLayout.Config(model=2).build().mesh(tpu_topology("tpu7x:2x2x1"))
    assert all(line[0].coords == line[1].coords for line in along(mesh, "model"))


@needs_gpu_compiler
def test_hosts_of_gpus_are_outermost() -> None:
    mesh = (
        MeshLayout.Config(data=2, fsdp=2, model=4)
        .build()
        .mesh(gpu_topology("nvidia-h100", hosts=2))
    )
    assert all([d.process_index for d in line] == [0, 1] for line in along(mesh, "data"))
    for axis in ("fsdp", "model"):
        assert all(len({d.process_index for d in line}) == 1 for line in along(mesh, axis))


@needs_tpu_compiler
@pytest.mark.parametrize("name", ["v7x:2x2x1", "v5e:3x5", "nonsense"])
def test_a_slice_that_libtpu_does_not_know_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"libtpu knows no topology '{name}'.*such as v5e:4x4"):
        tpu_topology(name)
