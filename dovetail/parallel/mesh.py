"""The mesh: the number of devices along each axis of parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from dovetail.config import Component, ConfigError, did_you_mean
from dovetail.parallel.slices import arrange_devices, slice_sizes, slices_per_axis

# Outermost first: axes that communicate least come first, so that the heaviest communication is
# between neighbours.
MESH_AXES = ("pipeline", "data", "fsdp", "expert", "sequence", "model")


class MeshLayout(Component):
    """The number of devices along each mesh axis; -1 takes all remaining devices."""

    class Config(Component.Config["MeshLayout"]):
        """By default all devices are on the `fsdp` axis.

        `dcn` is the number of slices along an axis, for slices that only the data-center network
        (DCN) connects: `{"data": 2}`. Unset, it is `data`, or `pipeline` if data does not divide.
        """

        pipeline: int = 1
        data: int = 1
        fsdp: int = -1
        expert: int = 1
        sequence: int = 1
        model: int = 1
        dcn: dict[str, int] = {}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name = config.locate() or "mesh"
        self.sizes: dict[str, int] = {axis: getattr(config, axis) for axis in MESH_AXES}
        unset = [axis for axis, size in self.sizes.items() if size < 1]
        if len(unset) > 1 or any(self.sizes[axis] != -1 for axis in unset):
            raise ConfigError(
                f"{self.name}: expected sizes of 1 or more, and at most one -1 (all "
                f"remaining devices), got {self}."
            )
        self.dcn = dict(config.dcn)
        for axis, slices in self.dcn.items():
            if axis not in MESH_AXES:
                raise ConfigError(
                    f"{self.name}.dcn: there is no mesh axis {axis!r}. "
                    + did_you_mean(axis, MESH_AXES)
                )
            if slices < 1:
                raise ConfigError(f"{self.name}.dcn.{axis}: expected 1 or more, got {slices}.")

    def __str__(self) -> str:
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

        TPUs and GPUs are arranged by their topology; virtual CPU devices keep their order.
        """
        devices = jax.devices() if devices is None else devices
        sizes = self.shape(len(devices))
        dcn = self._slices_per_axis(sizes, devices)
        auto = (AxisType.Auto,) * len(sizes)
        return Mesh(arrange_devices(devices, sizes, dcn), MESH_AXES, axis_types=auto)

    def abstract_mesh(
        self, device_count: int, slices: int | None = None, *, any_axis: bool = False
    ) -> AbstractMesh:
        """Returns an abstract mesh, which needs no devices: enough to compute shardings.

        With a number of slices, an axis that may not span slices is an error, as in `mesh()`;
        `any_axis` allows every axis to, as with GPUs.
        """
        sizes = self.shape(device_count)
        if slices is not None:
            slices_per_axis(sizes, slices, self.dcn, self.name, any_axis=any_axis)
        auto = (AxisType.Auto,) * len(sizes)
        return AbstractMesh(tuple(sizes.values()), MESH_AXES, axis_types=auto)

    def _slices_per_axis(
        self, sizes: dict[str, int], devices: Sequence[jax.Device]
    ) -> dict[str, int]:
        """Returns the number of slices along each axis; slices of unequal size are an error."""
        each = slice_sizes(devices)
        if len(set(each)) > 1:
            raise ConfigError(
                f"{self.name}: the slices have {', '.join(map(str, each))} devices. A mesh needs "
                "slices of equal size: leave some devices out."
            )
        is_gpu = devices[0].platform == "gpu"
        return slices_per_axis(sizes, len(each), self.dcn, self.name, any_axis=is_gpu)


def max_steps_in_flight(mesh: Mesh) -> int:
    """Returns how many dispatched steps may be in flight before the loop blocks on the first.

    Two keep a device busy. The virtual devices of one CPU share a thread pool, and a device that
    waits in a collective holds a thread: a second step can take the threads that the first needs,
    and both deadlock (seen with 8 devices on 2 cores). So for virtual devices it is 0: the loop
    blocks on every step.
    """
    first = mesh.devices.flat[0]
    return 0 if first.platform == "cpu" and mesh.size > 1 else 2
