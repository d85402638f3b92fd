"""The mesh: how many devices work along each axis of parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from dovetail.config import ConfigError, Part, did_you_mean
from dovetail.parallel.slices import arranged, crossing, slice_sizes

# Outermost first: what talks least stands first, so that neighbours on the network talk most.
MESH_AXES = ("pipeline", "data", "fsdp", "expert", "sequence", "model")


class MeshLayout(Part):
    """The number of devices along each mesh axis; -1 means all that are left."""

    class Config(Part.Config["MeshLayout"]):
        """By default all devices hold a slice of the data and a slice of each parameter.

        `across` says over how many slices an axis goes, where several are joined by a network
        alone: `{"data": 2}`. By itself it is `data`, or `pipeline` where data does not divide.
        """

        pipeline: int = 1
        data: int = 1
        fsdp: int = -1
        expert: int = 1
        sequence: int = 1
        model: int = 1
        across: dict[str, int] = {}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name = config.locate() or "mesh"
        self.sizes: dict[str, int] = {axis: getattr(config, axis) for axis in MESH_AXES}
        unset = [axis for axis, size in self.sizes.items() if size < 1]
        if len(unset) > 1 or any(self.sizes[axis] != -1 for axis in unset):
            raise ConfigError(
                f"{self.name}: expected sizes of 1 or more, and at most one -1 (all that are "
                f"left), got {self}."
            )
        self.across = dict(config.across)
        for axis, over in self.across.items():
            if axis not in MESH_AXES:
                raise ConfigError(
                    f"{self.name}.across: there is no mesh axis {axis!r}. "
                    + did_you_mean(axis, MESH_AXES)
                )
            if over < 1:
                raise ConfigError(f"{self.name}.across.{axis}: expected 1 or more, got {over}.")

    def __str__(self) -> str:
        """Writes the axes that matter."""
        written = [f"{axis}={size}" for axis, size in self.sizes.items() if size != 1]
        return ", ".join(written) or "1 for every axis"

    def shape(self, device_count: int) -> dict[str, int]:
        """Returns the size of each axis for a number of devices."""
        fixed = math.prod(size for size in self.sizes.values() if size != -1)
        left = device_count // fixed
        sizes = {axis: left if size == -1 else size for axis, size in self.sizes.items()}
        if math.prod(sizes.values()) != device_count:
            raise ConfigError(
                f"{self.name}: {self} does not fit {device_count} devices: the fixed sizes "
                f"multiply to {fixed}. Choose sizes that multiply to {device_count}, or one -1 for "
                "the rest."
            )
        return sizes

    def mesh(self, devices: Sequence[jax.Device] | None = None) -> Mesh:
        """Makes the mesh over the given devices, or over all.

        TPUs and GPUs are put where neighbours talk most, whatever the order in which they are
        given; virtual devices keep it.
        """
        devices = jax.devices() if devices is None else devices
        sizes = self.shape(len(devices))
        across = self._across(sizes, devices)
        auto = (AxisType.Auto,) * len(sizes)
        return Mesh(arranged(devices, sizes, across), MESH_AXES, axis_types=auto)

    def abstract(
        self, device_count: int, slices: int | None = None, *, any_axis: bool = False
    ) -> AbstractMesh:
        """Returns the mesh of devices that are not there: enough to say how arrays are split.

        With a number of slices, an axis that may not cross them is an error, as it is in `mesh()`;
        `any_axis` says that all may, as with GPUs.
        """
        sizes = self.shape(device_count)
        if slices is not None:
            crossing(sizes, slices, self.across, self.name, any_axis=any_axis)
        auto = (AxisType.Auto,) * len(sizes)
        return AbstractMesh(tuple(sizes.values()), MESH_AXES, axis_types=auto)

    def _across(self, sizes: dict[str, int], devices: Sequence[jax.Device]) -> dict[str, int]:
        """Returns over how many slices each axis goes; slices of unequal size are an error."""
        each = slice_sizes(devices)
        if len(set(each)) > 1:
            raise ConfigError(
                f"{self.name}: the slices have {', '.join(map(str, each))} devices. A mesh needs "
                "as many of each: leave some out."
            )
        is_gpu = devices[0].platform == "gpu"
        return crossing(sizes, len(each), self.across, self.name, any_axis=is_gpu)


def steps_ahead(mesh: Mesh) -> int:
    """Returns how many steps may be in flight before the result of the first is waited for.

    Two keep a device busy. The virtual devices of one CPU share a pool of threads, and each that
    waits at a collective holds one: a second step in flight can take the threads that the first
    needs, and both wait for ever (seen with 8 devices on 2 cores). So there it is none.
    """
    first = mesh.devices.flat[0]
    return 0 if first.platform == "cpu" and mesh.size > 1 else 2
