"""Wrappers that other programs do not know, computed into what they wrap.

A part declares itself to be one by a method: see `dovetail.layers.Mergeable`. Which part it is, is
not known here, and families never see it: to them a model is what `unwrapped` returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dovetail.config import Config, ConfigError, select
from dovetail.config import replace as replace_parts
from dovetail.interop.stored import SlotReader, StoredModel
from dovetail.layers import Mergeable
from dovetail.module import Module, Slot, Spec, modules, parameter_specs, variable_specs

C = TypeVar("C", bound=Config[Any])


@dataclass(frozen=True)
class Wrapper:
    """A mergeable module of a model: its path, and its own parameters by name."""

    path: str
    module: Any
    own: Mapping[str, Spec]

    def own_paths(self) -> list[str]:
        """Returns the paths of its own parameters."""
        return [f"{self.path}/{name}" for name in self.own]

    def own_arrays(self, index: tuple[int, ...], read_slot: SlotReader) -> dict[str, Any]:
        """Returns its own parameters at one layer's place."""
        return {
            name: read_slot(Slot(f"{self.path}/{name}", index[: spec.stacked], spec.layer_shape))
            for name, spec in self.own.items()
        }


def unwrapped(config: C) -> C:
    """Returns a model's config in which every mergeable part is what it wraps."""
    while len(select(config, Mergeable)):
        config = replace_parts(config, Mergeable, _wrapped)
    return config


def wrappers(model: Module) -> list[Wrapper]:
    """Returns the mergeable modules of a model, outer ones first."""
    specs: dict[str, Spec] = {**parameter_specs(model), **variable_specs(model)}
    return [
        Wrapper(path, module, {name: specs[f"{path}/{name}"] for name in module.own_specs()})
        for path, module in modules(model)
        if issubclass(type(module), Mergeable)  # of the class: a reference stands for any object
    ]


def merged(stored: StoredModel, model: Module) -> StoredModel:
    """Returns the parameters of the unwrapped model, computed as they are read."""
    found = wrappers(model)

    def reader(paths: list[str]) -> SlotReader:
        around = {path: _around(path, found) for path in paths}
        own = [path for each in around.values() for one in each for path in one.own_paths()]
        read_slot = stored.reader(list(dict.fromkeys([*paths, *own])))

        def read_merged(slot: Slot) -> Any:
            value = read_slot(slot)
            for wrapper in around[slot.path]:
                name = slot.path.removeprefix(f"{wrapper.path}/")
                value = wrapper.module.merged(
                    name, value, wrapper.own_arrays(slot.index, read_slot)
                )
            return value

        return read_merged

    return replace(stored, reader=reader) if found else stored


def _around(path: str, found: list[Wrapper]) -> list[Wrapper]:
    """Returns the wrappers around a parameter, the innermost first."""
    return [one for one in reversed(found) if path.startswith(f"{one.path}/")]


def _wrapped(config: Config[Any]) -> Config[Any]:
    names = [name for name, field in config.fields().items() if field.wraps]
    if len(names) != 1:
        raise ConfigError(
            f"{type(config).display_name()} has a method `merged`, so it should wrap one part: "
            f"mark that field by wraps(). Marked are {names}."
        )
    inside: Config[Any] = getattr(config, names[0])
    return inside
