"""Axis rules: they map logical axes to mesh axes, once for all models.

A rule may also name one parameter by its path; its optimizer state follows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from dovetail.config import Component, ConfigError, did_you_mean, nearest
from dovetail.parallel.mesh import MESH_AXES

Axes = Sequence[str | None]
_SAME_WORD = 0.75  # how similar the name of an axis must be to be taken for a misspelt one
_SHORTEST_PREFIX = 4  # letters
AnyMesh = Mesh | AbstractMesh
"""A mesh of devices, or an abstract one that needs no devices."""


class ParameterAxes(tuple[str | None, ...]):
    """The logical axes of an array whose mesh axes a rule sets by path."""

    mesh_axes: tuple[tuple[str, ...], ...]
    """The mesh axes of each axis, whatever its logical name."""

    def __new__(cls, axes: Axes, mesh_axes: Sequence[tuple[str, ...]]) -> ParameterAxes:
        """Takes the logical and the mesh axes, one each for every axis."""
        self = super().__new__(cls, axes)
        self.mesh_axes = tuple(mesh_axes)
        return self


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
        # By pattern of path (of the stacked array): for each axis the mesh axes that shard it, such
        # as {"decoder/embedding/weight": ("model", None)}. These parameters use no other rule.
        parameters: dict[str, tuple[str | tuple[str, ...] | None, ...]] = {}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.rules = config.rules
        self._near: dict[str, str | None] = {}  # by name, a rule with a similar one
        self.parameters = {
            pattern: tuple(_names(entry) for entry in entries)
            for pattern, entries in config.parameters.items()
        }
        for axis, mesh_axes in self.rules.items():
            _check_mesh_axes(f"{config.locate('rules')}.{axis}", mesh_axes)
        for pattern, entries in self.parameters.items():
            where = f"{config.locate('parameters')}[{pattern!r}]"
            _check_mesh_axes(where, [name for names in entries for name in names], once=True)

    def for_parameter(self, path: str, axes: Axes, of_array: Axes | None = None) -> Axes:
        """Returns the axes of a parameter, with the mesh axes of the rule that names its path.

        Args:
            path: the parameter's path.
            axes: its logical axes.
            of_array: the logical axes of an array of its optimizer state; None: the parameter
                itself. Where the state has fewer axes, each is sharded as the parameter's axis of
                the same name.
        """
        of_array = axes if of_array is None else of_array
        matching = [p for p in self.parameters if fnmatchcase(path, p)]
        if not matching:
            return of_array
        # A path beats a pattern; `check_parameters` refuses two patterns.
        mesh_axes = self.parameters[path if path in matching else matching[0]]
        if tuple(of_array) == tuple(axes):
            return ParameterAxes(of_array, mesh_axes)
        names = list(axes)
        by_name = {
            name: found
            for name, found in zip(names, mesh_axes, strict=True)
            if names.count(name) == 1 and name is not None
        }
        return ParameterAxes(of_array, [by_name.get(name or "", ()) for name in of_array])

    def check_parameters(self, axes: Mapping[str, Axes]) -> None:
        """Raises a ConfigError for rules that no parameter, or more than one rule, can follow.

        Warns of a logical axis that has no rule, and a name like that of one that has.

        Args:
            axes: the logical axes of all parameters, by path.
        """
        self._warn_of_misspelt(axes)
        self._warn_of_unused({name for each in axes.values() for name in each if name is not None})
        for pattern, entries in self.parameters.items():
            matching = [path for path in axes if fnmatchcase(path, pattern)]
            where = f"rules.parameters[{pattern!r}]"
            if not matching:
                advice = did_you_mean(pattern, axes)
                raise ConfigError(f"{where} matches no parameter. {advice} `*` also matches '/'.")
            for path in matching:
                if len(entries) != len(axes[path]):
                    raise ConfigError(
                        f"{where} has {len(entries)} axes, but {path} has {len(axes[path])}: "
                        f"{tuple(axes[path])}. Name the mesh axes of each, or None."
                    )
                others = [p for p in self.parameters if p != pattern and fnmatchcase(path, p)]
                if others and path not in self.parameters:
                    raise ConfigError(
                        f"{where} and {others[0]!r} both match {path}. Name the path itself, "
                        "which beats any pattern, or narrow one of them."
                    )

    def _warn_of_misspelt(self, axes: Mapping[str, Axes]) -> None:
        named = [(name, path) for path in reversed([*axes]) for name in axes[path]]
        for name, path in dict(named).items():  # the first path of each name
            if (advice := self.misspelt(name) or self._longer(name)) is not None:
                warnings.warn(f"{path}: {advice}", stacklevel=2)

    def _warn_of_unused(self, names: Collection[str]) -> None:
        known = {*names, *AxisRules.Config().rules}
        for name in [key for key, axes in self.rules.items() if axes and key not in known]:
            if near := nearest(name, known, 1, _SAME_WORD):
                warnings.warn(
                    f"rules.rules.{name}: no parameter has this logical axis. Did you mean "
                    f"{near[0]!r}? If an activation has it, ignore this.",
                    stacklevel=2,
                )

    def misspelt(self, name: str | None) -> str | None:
        """Returns a sentence about a logical axis without a rule whose name is like another's."""
        if name is None or name in self.rules:
            return None
        if name not in self._near:
            self._near[name] = next(iter(nearest(name, self.rules, 1, _SAME_WORD)), None)
        return _no_rule(name, self._near[name])

    def _longer(self, name: str | None) -> str | None:
        """Returns the same about a name that begins as another does, such as `vocabulary`."""
        if name is None or name in self.rules or len(name) < _SHORTEST_PREFIX:
            return None
        known = [each for each in self.rules if len(each) >= _SHORTEST_PREFIX]
        found = (each for each in known if each.startswith(name) or name.startswith(each))
        return _no_rule(name, next(found, None))

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
        by_rule = [self.rules.get(axis, ()) if axis is not None else () for axis in axes]
        for wanted in axes.mesh_axes if isinstance(axes, ParameterAxes) else by_rule:
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


def _no_rule(name: str, near: str | None) -> str | None:
    if near is None:
        return None
    return (
        f"there is no rule for the logical axis {name!r}, so it is never sharded. Did you mean "
        f"{near!r}? If not, add rules.rules.{name}=() to say so."
    )


def _names(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else entry


def _check_mesh_axes(where: str, names: Sequence[str], once: bool = False) -> None:
    for name in names:
        if name not in MESH_AXES:
            advice = did_you_mean(name, MESH_AXES)
            raise ConfigError(f"{where}: there is no mesh axis {name!r}. {advice}")
        if once and names.count(name) > 1:
            raise ConfigError(f"{where}: the mesh axis {name!r} can shard only one of the axes.")


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
