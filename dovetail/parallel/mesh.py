"""The mesh: how many devices work along each axis of parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from dovetail.config import ConfigError, Part

# Outermost first: what talks least stands first, so that neighbours on the network talk most.
MESH_AXES = ("pipeline", "data", "fsdp", "expert", "sequence", "model")


class MeshLayout(Part):
    """The number of devices along each mesh axis; -1 means all that are left."""

    class Config(Part.Config["MeshLayout"]):
        """By default all devices hold a slice of the data and a slice of each parameter."""

        pipeline: int = 1
        data: int = 1
        fsdp: int = -1
        expert: int = 1
        sequence: int = 1
        model: int = 1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.sizes = {axis: int(getattr(config, axis)) for axis in MESH_AXES}

    def shape(self, device_count: int) -> dict[str, int]:
        """Returns the size of each axis for a number of devices."""
        sizes = dict(self.sizes)
        free = [axis for axis, size in sizes.items() if size == -1]
        fixed = math.prod(size for size in sizes.values() if size != -1)
        wrong = [axis for axis, size in sizes.items() if size < 1 and size != -1]
        if wrong or len(free) > 1:
            raise ConfigError(
                f"mesh: expected sizes of 1 or more and at most one -1, got {_written(sizes)}."
            )
        if free:
            sizes[free[0]] = device_count // fixed
        if math.prod(sizes.values()) != device_count:
            raise ConfigError(
                f"mesh: {_written(self.sizes)} does not fit {device_count} devices: the fixed sizes multiply "
                f"to {fixed}. Choose sizes that multiply to {device_count}, or one -1 for the rest."
            )
        return sizes

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Makes the mesh over the given devices, or over all there are."""
        chosen = list(devices if devices is not None else jax.devices())
        sizes = tuple(self.shape(len(chosen)).values())
        if devices is None and len(chosen) > 1:
            return jax.make_mesh(sizes, MESH_AXES, axis_types=(AxisType.Auto,) * len(sizes))
        grid = np.asarray(chosen, dtype=object).reshape(sizes)
        return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(sizes))


def _written(sizes: dict[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items() if size != 1) or "all 1"
