"""Comparing and explaining configs: diff(), identity(), and the origin of every value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from dovetail.config.base import Component, Config
from dovetail.config.errors import ConfigError
from dovetail.config.text import all_values, json_values
from dovetail.config.traverse import visit
from dovetail.config.values import (
    CONTAINERS,
    copy_into,
    items_of,
    join,
    path_sort_key,
    rebuild,
)

C = TypeVar("C", bound=Config[Any])
P = TypeVar("P", bound=Component)


@dataclass(frozen=True)
class Difference:
    """A path whose values differ; None if a side has no such path."""

    path: str
    left: str | None
    right: str | None
    by_default: bool = False
    """Whether one side lacks the path, and the other has it by default."""

    def __str__(self) -> str:
        left, right = self.left or "(absent)", self.right or "(absent)"
        return f"{self.path or '(root)'}: {left} -> {right}"


def diff(left: Config[Any], right: Config[Any]) -> list[Difference]:
    """Returns every difference between two trees, in the order of their paths."""
    left, right = left.clone(), right.clone()  # so that paths start at these configs
    before, after = all_values(left), all_values(right)
    one_sided = {path: left for path in before if path not in after}
    one_sided |= {path: right for path in after if path not in before}
    unset = {id(tree): _unset(tree) for tree in (left, right)}
    return [
        Difference(
            path,
            before.get(path),
            after.get(path),
            by_default=path in one_sided and _is_within(path, unset[id(one_sided[path])]),
        )
        for path in sorted({**before, **after}, key=path_sort_key)
        if before.get(path) != after.get(path)
    ]


def _unset(tree: Config[Any]) -> set[str]:
    """Returns the paths of all fields that were not set explicitly."""
    owners = list(visit(tree))
    return {
        join(p, name) for p, owner in owners for name in owner.fields() if not owner.is_set(name)
    }


def _is_within(path: str, above: set[str]) -> bool:
    """Says whether a path, or a parent of it, is in a set."""
    while path and path not in above:
        path = path.rpartition(".")[0]
    return bool(path)


def identity(config: C) -> C:
    """Returns a copy of what must not change when a run is resumed.

    Incidental fields have their defaults, and a component that is declared interchangeable with
    another is the default config of that.
    """
    copy = config.clone()
    _reset(copy)
    return copy


def interchangeable_with(other: type[Component]) -> Callable[[type[P]], type[P]]:
    """Declares that a component computes the same as another, up to rounding.

    A run may be resumed with either: in its identity, `other` stands for both. Subclasses do not
    inherit the declaration, because they may compute something else.
    """

    def declare(component: type[P]) -> type[P]:
        _representatives[component.Config] = other.Config
        return component

    return declare


_representatives: dict[type, type[Config[Any]]] = {}


def _reset(config: Config[Any]) -> None:
    """Reduces a config to its identity fields, in place."""
    fields, defaults = config.fields(), type(config)()
    for name, value in config._node.values.items():
        if fields[name].incidental:
            changed = defaults._node.values[name]
            config._node.explicit.pop(name, None)
        else:
            changed = _represented(value)
        config._node.values[name] = copy_into(config, name, changed)


def _represented(value: Any) -> Any:
    """Returns a value in which each config is reduced to its identity fields."""
    if isinstance(value, Config):
        found = _representatives.get(type(value), lambda: value)()
        _reset(found)
        return found
    if type(value) in CONTAINERS:
        return rebuild(value, [_represented(item) for _, item in items_of(value)])
    return value


class Explanation(NamedTuple):
    """One value of a tree: its path, its text and its origin."""

    path: str
    value: str
    origin: str


def explain(config: Config[Any]) -> list[Explanation]:
    """Returns every value of the tree with its origin, in the order of the paths."""
    tree = config.clone()  # so that paths start at this config
    owners = {
        join(path, name): (owner, name) for path, owner in visit(tree) for name in owner.fields()
    }
    return [
        Explanation(path, value, _origin(path, owners) if path else "the config itself")
        for path, value in all_values(tree).items()
    ]


def json_origins(config: Config[Any]) -> dict[str, dict[str, Any]]:
    """Returns every value of the tree by path in JSON types, and what set it."""
    values = json_values(config)
    return {
        line.path: {"value": values[line.path], "set_by": line.origin} for line in explain(config)
    }


def derived_paths(config: Config[Any]) -> set[str]:
    """Returns the paths of the required values that parents set when they build their children.

    Builds the config; it has none if a required value is really missing.
    """
    try:
        config.build()
    except ConfigError:
        return set()
    return {path for path, text in all_values(config).items() if text == "REQUIRED"}


def _origin(path: str, owners: dict[str, tuple[Config[Any], str]]) -> str:
    while path not in owners:  # an item of a list or dict has the origin of its field
        path = path.rpartition(".")[0]
    owner, name = owners[path]
    origin = owner.get_origin(name)
    if origin is not None:
        return str(origin)
    changed = owner.is_set(name) and not isinstance(owner._node.values[name], Config)
    return "changed in place" if changed else f"default of {type(owner).display_name()}"
