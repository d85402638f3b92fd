"""The weights of a run, read a few at a time for export; adapters are merged as they are read.

A mergeable layer implements `dovetail.layers.Mergeable`. Families never see one: they get the
config that `unwrapped` returns, and the weights that `merged` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

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


@dataclass(frozen=True)
class ModelSource:
    """A trained model, as an export reads it.

    Attributes:
        name: where it is, for messages.
        model: the model as it was trained, with adapters.
        weights: its weights.
        trained: the paths of the parameters that were trained.
        tokenizer: its tokenizer, if it has one.
        is_imported: whether the model, or the one it started from, was imported.
        source_folder: the folder with the config.json that was imported, if it is still there.
        base: where the model that it was initialized from came from; None if from scratch.
    """

    name: str
    model: Any
    weights: RunWeights
    trained: frozenset[str]
    tokenizer: Any
    is_imported: bool
    source_folder: Path | None
    base: Mapping[str, Any] | None


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
