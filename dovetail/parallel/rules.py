"""Logical-axis rules: which mesh axes carry which logical axis. Written once, for all models."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from dovetail.config import ConfigError, Part, did_you_mean
from dovetail.parallel.mesh import MESH_AXES

Axes = Sequence[str | None]
AnyMesh = Mesh | AbstractMesh
"""A mesh of devices, or of devices that are not there."""


class AxisRules(Part):
    """For each logical axis, the mesh axes that split it.

    Within one array each mesh axis is used once, by the first axis that asks for it. So activations
    split `batch` over `fsdp`, and parameters, which have no batch, split `embed` over it.
    """

    class Config(Part.Config["AxisRules"]):
        """The rules; an axis that is not named is never split."""

        rules: dict[str, tuple[str, ...]] = {
            "batch": ("data", "fsdp", "expert"),
            "sequence": ("sequence",),
            "stream": ("sequence",),
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

    def partition(self, axes: Axes, mesh: AnyMesh, apart: Collection[str] = ()) -> PartitionSpec:
        """Returns how an array with these logical axes is split over a mesh."""
        entries = [names or None for names in self.mesh_axes(axes, mesh, apart)]
        while entries and entries[-1] is None:
            entries.pop()
        return PartitionSpec(*entries)

    def sharding(
        self,
        axes: Axes,
        mesh: AnyMesh,
        shape: Sequence[int] | None = None,
        what: str = "array",
        apart: Collection[str] = (),
    ) -> NamedSharding:
        """Returns the sharding of an array; an axis that does not divide is an error.

        Args:
            axes: the logical name of each axis.
            mesh: the devices.
            shape: the sizes to check; None checks nothing.
            what: how an error names the array, such as a parameter's path.
            apart: mesh axes that are not for the rules to give.
        """
        if shape is not None:
            for index, names in enumerate(self.mesh_axes(axes, mesh, apart)):
                parts = math.prod(mesh.shape[name] for name in names)
                if shape[index] % parts:
                    where = f"{what}: axis {index} ({axes[index]!r})"
                    raise _indivisible(where, shape[index], names, parts)
        return NamedSharding(mesh, self.partition(axes, mesh, apart))

    def mesh_axes(
        self, axes: Axes, mesh: AnyMesh, apart: Collection[str] = ()
    ) -> list[tuple[str, ...]]:
        """Returns the mesh axes that split each logical axis."""
        used = set(apart)
        result = []
        for axis in axes:
            wanted = self.rules.get(axis, ()) if axis is not None else ()
            split = [name for name in wanted if mesh.shape.get(name, 1) > 1]
            result.append(tuple(name for name in split if name not in used))
            used.update(split)
        return result

    def stage_axes(self, mesh: AnyMesh) -> tuple[str, ...]:
        """Returns the mesh axes that split the layers of a stack and nothing else.

        XLA by itself computes the same on all devices along them; to use them takes a schedule.
        """
        others = {name for axis, names in self.rules.items() if axis != "stage" for name in names}
        return tuple(name for name in self.mesh_axes(("stage",), mesh)[0] if name not in others)


def _indivisible(where: str, size: int, names: tuple[str, ...], parts: int) -> ConfigError:
    sizes = [value for value in (size - size % parts, size + parts - size % parts) if value > 0]
    # The nearest numbers of parts that would do; 1 always does.
    fewer = [count for count in range(parts - 1, 0, -1) if size % count == 0][:3]
    return ConfigError(
        f"{where} has size {size}, which does not divide into {parts} parts "
        f"(mesh {' x '.join(names)}). A size of {_either(sizes)} would divide; "
        f"so would a mesh of {_either(fewer)} there."
    )


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))
