"""Logical-axis rules: which mesh axes carry which logical axis. Written once, for all models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dovetail.config import ConfigError, Part
from dovetail.parallel.mesh import MESH_AXES

Axes = Sequence[str | None]


class AxisRules(Part):
    """For each logical axis, the mesh axes that split it, in order of preference.

    Within one array each mesh axis is used once, by the first axis that asks for it. So activations split
    `batch` over `fsdp`, and parameters, which have no batch, split `embed` over it.
    """

    class Config(Part.Config["AxisRules"]):
        """The rules; an axis that is not named is never split."""

        rules: dict[str, tuple[str, ...]] = {  # noqa: RUF012  # copied for each config
            "batch": ("data", "fsdp", "expert"),
            "sequence": ("sequence",),
            "embed": ("fsdp",),
            "heads": ("model",),
            "kv_heads": ("model",),
            "mlp": ("model",),
            "vocab": ("model",),
            "expert": ("expert",),
            "layers": ("pipeline",),
            "stage": ("pipeline",),
        }

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.rules: Mapping[str, tuple[str, ...]] = config.rules
        for axis, mesh_axes in self.rules.items():
            unknown = set(mesh_axes) - set(MESH_AXES)
            if unknown:
                raise ConfigError(
                    f"rules.{axis}: no mesh axis {sorted(unknown)}; there are {', '.join(MESH_AXES)}."
                )

    def partition(self, axes: Axes, mesh: Mesh) -> PartitionSpec:
        """Returns how an array with these logical axes is split over a mesh."""
        used: set[str] = set()
        entries: list[tuple[str, ...] | None] = []
        for axis in axes:
            wanted = self.rules.get(axis, ()) if axis is not None else ()
            taken = tuple(name for name in wanted if mesh.shape[name] > 1 and name not in used)
            used.update(taken)
            entries.append(taken or None)
        while entries and entries[-1] is None:
            entries.pop()
        return PartitionSpec(*entries)

    def sharding(
        self, axes: Axes, mesh: Mesh, shape: Sequence[int] | None = None, what: str = "array"
    ) -> NamedSharding:
        """Returns the sharding of an array; an axis that does not divide is an error that says what would."""
        partition = self.partition(axes, mesh)
        for index, entry in enumerate(partition):
            if entry is None or shape is None:
                continue
            parts = math.prod(mesh.shape[name] for name in entry)
            if shape[index] % parts:
                raise _indivisible(what, axes, index, shape[index], entry, parts)
        return NamedSharding(mesh, partition)


def _indivisible(
    what: str, axes: Axes, index: int, size: int, mesh_axes: tuple[str, ...], parts: int
) -> ConfigError:
    lower, upper = size - size % parts, size + parts - size % parts
    fitting = [count for count in range(parts, 0, -1) if size % count == 0][:3]
    sizes = " or ".join(str(value) for value in (lower, upper) if value > 0)
    return ConfigError(
        f"{what}: axis {index} ({axes[index]!r}) has size {size}, which does not divide into {parts} parts "
        f"(mesh {' x '.join(mesh_axes)}). A size of {sizes} would, and so would a mesh of "
        f"{' or '.join(map(str, fitting))} there."
    )
