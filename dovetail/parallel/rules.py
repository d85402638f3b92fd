"""Axis rules: they map logical axes to mesh axes, once for all models."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from dovetail.config import Component, ConfigError, did_you_mean
from dovetail.parallel.mesh import MESH_AXES

Axes = Sequence[str | None]
AnyMesh = Mesh | AbstractMesh
"""A mesh of devices, or an abstract one that needs no devices."""


class AxisRules(Component):
    """For each logical axis, the mesh axes that shard it.

    Each mesh axis shards at most one axis of an array: the first whose rule names it. So `fsdp`
    shards the `batch` of activations, and the `embed` of parameters, which have no batch.
    """

    class Config(Component.Config["AxisRules"]):
        """The rules; an axis without a rule is never sharded.

        `residual_sequence` is the sequence axis of the residual stream between blocks. Megatron's
        sequence parallelism shards it over `model`, too.
        """

        rules: dict[str, tuple[str, ...]] = {
            "batch": ("data", "fsdp", "expert"),
            "sequence": ("sequence",),
            "residual_sequence": ("sequence",),
            "embed": ("fsdp",),
            "rank": ("fsdp",),
            "heads": ("model",),
            "kv_heads": ("model",),
            "mlp": ("model",),
            "vocab": ("model",),
            "expert": ("expert",),
            "stage": ("pipeline",),
        }

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.rules = config.rules
        for axis, mesh_axes in self.rules.items():
            for name in mesh_axes:
                if name not in MESH_AXES:
                    raise ConfigError(
                        f"{config.locate('rules')}.{axis}: there is no mesh axis {name!r}. "
                        + did_you_mean(name, MESH_AXES)
                    )

    def partition_spec(
        self, axes: Axes, mesh: AnyMesh, manual_axes: Collection[str] = ()
    ) -> PartitionSpec:
        """Returns the partition spec of an array with these logical axes."""
        entries = [names or None for names in self.mesh_axes(axes, mesh, manual_axes)]
        while entries and entries[-1] is None:
            entries.pop()
        return PartitionSpec(*entries)

    def sharding(
        self,
        axes: Axes,
        mesh: AnyMesh,
        shape: Sequence[int] | None = None,
        name: str = "array",
        manual_axes: Collection[str] = (),
    ) -> NamedSharding:
        """Returns the sharding of an array; an axis that does not divide is an error.

        Args:
            axes: the logical name of each axis.
            mesh: the devices.
            shape: the sizes to check; None checks nothing.
            name: the array's name in an error, such as a parameter's path.
            manual_axes: mesh axes that the rules may not use.
        """
        if shape is not None:
            for index, names in enumerate(self.mesh_axes(axes, mesh, manual_axes)):
                shards = math.prod(mesh.shape[axis] for axis in names)
                if shape[index] % shards:
                    where = f"{name}: axis {index} ({axes[index]!r})"
                    raise _indivisible(where, shape[index], names, shards)
        return NamedSharding(mesh, self.partition_spec(axes, mesh, manual_axes))

    def mesh_axes(
        self, axes: Axes, mesh: AnyMesh, manual_axes: Collection[str] = ()
    ) -> list[tuple[str, ...]]:
        """Returns the mesh axes that shard each logical axis."""
        used = set(manual_axes)
        result = []
        for axis in axes:
            wanted = self.rules.get(axis, ()) if axis is not None else ()
            sharding = [name for name in wanted if mesh.shape.get(name, 1) > 1]
            result.append(tuple(name for name in sharding if name not in used))
            used.update(sharding)
        return result

    def stage_axes(self, mesh: AnyMesh) -> tuple[str, ...]:
        """Returns the mesh axes that shard only the layers of a stack (pipeline stages).

        Without a pipeline schedule, all devices along them compute the same.
        """
        others = {name for axis, names in self.rules.items() if axis != "stage" for name in names}
        return tuple(name for name in self.mesh_axes(("stage",), mesh)[0] if name not in others)


def _indivisible(where: str, size: int, names: tuple[str, ...], shards: int) -> ConfigError:
    sizes = [value for value in (size - size % shards, size + shards - size % shards) if value > 0]
    # The nearest numbers of shards that divide; 1 always does.
    fewer = [count for count in range(shards - 1, 0, -1) if size % count == 0][:3]
    return ConfigError(
        f"{where} has size {size}, which does not divide into {shards} shards "
        f"(mesh {' x '.join(names)}). A size of {_either(sizes)} would divide; "
        f"so would a mesh of {_either(fewer)} there."
    )


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))
