"""The weights of a run, read a few at a time for export; adapters are merged as they are read.

A mergeable layer implements `dovetail.layers.Mergeable`. Families never see one: they get the
config that `unwrapped` returns, and the weights that `merged` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import numpy as np

from dovetail.config import Config, ConfigError, select
from dovetail.config import replace as replace_configs
from dovetail.layers import Mergeable
from dovetail.module import (
    Module,
    ParameterSlice,
    Spec,
    modules,
    parameter_specs,
    variable_specs,
)
from dovetail.runtime import RunFolder, StoredWeights, read_parameters

C = TypeVar("C", bound=Config[Any])
SliceReader = Callable[[ParameterSlice], Any]


@dataclass(frozen=True)
class RunWeights:
    """The weights of a run.

    Attributes:
        step: the training step; 0 for imported weights.
        dtypes: the stored dtypes by path.
        reader: given the paths that are needed together, returns a function that reads a slice of
            them.
    """

    step: int
    dtypes: Mapping[str, np.dtype[Any]]
    reader: Callable[[list[str]], SliceReader]


def run_weights(folder: RunFolder, model: Any) -> RunWeights:
    """Opens the newest weights of a run: a checkpoint, or imported weights."""
    variables = variable_specs(model)
    specs = {**parameter_specs(model), **variables}
    smallest = min(specs, key=lambda path: specs[path].size)
    found = read_parameters(folder, _structs(specs, [smallest]))
    if found is None:
        raise ConfigError(f"{folder.path} has neither a checkpoint nor imported weights to export.")
    step, weights = found[0], StoredWeights(folder.weights)
    if step or not weights.shapes:
        return _from_checkpoint(folder, specs, step)
    missing = sorted(specs.keys() - weights.shapes.keys() - variables.keys())
    if missing:
        raise ConfigError(f"{folder.weights} lacks the parameter {missing[0]}.")
    return RunWeights(0, weights.dtypes, lambda _: lambda at: weights.read_at(at.path, at.index))


def _from_checkpoint(folder: RunFolder, specs: Mapping[str, Spec], step: int) -> RunWeights:
    """Reads stacked arrays, only those that are needed together."""

    def reader(paths: list[str]) -> SliceReader:
        now, arrays = read_parameters(folder, _structs(specs, paths)) or (0, {})
        if now != step:  # the run is still training: the export would mix two steps
            raise ConfigError(
                f"{folder.path} was at step {step} when this export began and is at {now} now. "
                "Export again, or when training has ended."
            )
        missing = [path for path in paths if path not in arrays]
        if missing:
            raise ConfigError(f"{folder.path}: its checkpoint lacks the parameter {missing[0]}.")
        stacked = {path: np.asarray(array) for path, array in arrays.items()}
        return lambda at: stacked[at.path][at.index]

    dtypes = {path: np.dtype(spec.dtype) for path, spec in specs.items()}
    return RunWeights(step, dtypes, reader)


def _structs(specs: Mapping[str, Spec], paths: list[str]) -> dict[str, jax.ShapeDtypeStruct]:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    return {
        path: jax.ShapeDtypeStruct(specs[path].shape, specs[path].dtype, sharding=device)
        for path in paths
    }


# Adapters


@dataclass(frozen=True)
class MergeableModule:
    """A mergeable module of a model: its path, and the specs of its own parameters by name."""

    path: str
    module: Any
    own: Mapping[str, Spec]

    def own_paths(self) -> list[str]:
        """Returns the paths of its own parameters."""
        return [f"{self.path}/{name}" for name in self.own]

    def own_arrays(self, index: tuple[int, ...], read_slice: SliceReader) -> dict[str, Any]:
        """Returns its own parameters in one layer."""
        return {
            name: read_slice(
                ParameterSlice(f"{self.path}/{name}", index[: spec.stacked], spec.layer_shape)
            )
            for name, spec in self.own.items()
        }


def unwrapped(config: C) -> C:
    """Returns a model config in which the layer it wraps replaces every mergeable one."""
    while len(select(config, Mergeable)):
        config = replace_configs(config, Mergeable, _wrapped)
    return config


def mergeable_modules(model: Module) -> list[MergeableModule]:
    """Returns the mergeable modules of a model, outer ones first."""
    specs: dict[str, Spec] = {**parameter_specs(model), **variable_specs(model)}
    return [
        MergeableModule(path, module, {n: specs[f"{path}/{n}"] for n in module.own_specs()})
        for path, module in modules(model)
        if issubclass(type(module), Mergeable)  # the class: a Shared reference proxies any object
    ]


def merged(weights: RunWeights, model: Module) -> RunWeights:
    """Returns the weights of the unwrapped model, merged when they are read."""
    found = mergeable_modules(model)

    def reader(paths: list[str]) -> SliceReader:
        around = {path: _around(path, found) for path in paths}
        own = [path for each in around.values() for one in each for path in one.own_paths()]
        read_slice = weights.reader(list(dict.fromkeys([*paths, *own])))

        def read_merged(at: ParameterSlice) -> Any:
            value = read_slice(at)
            for wrapper in around[at.path]:
                name = at.path.removeprefix(f"{wrapper.path}/")
                value = wrapper.module.merged(name, value, wrapper.own_arrays(at.index, read_slice))
            return value

        return read_merged

    return replace(weights, reader=reader) if found else weights


def _around(path: str, found: list[MergeableModule]) -> list[MergeableModule]:
    """Returns the mergeable modules around a parameter, the innermost first."""
    return [one for one in reversed(found) if path.startswith(f"{one.path}/")]


def _wrapped(config: Config[Any]) -> Config[Any]:
    names = [name for name, field in config.fields().items() if field.wraps]
    if len(names) != 1:
        raise ConfigError(
            f"{type(config).display_name()} has a method `merged`, so exactly one field must be "
            f"marked by wraps(). Marked are {names}."
        )
    inside: Config[Any] = getattr(config, names[0])
    return inside
