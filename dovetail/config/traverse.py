"""Walking a tree of configs: visit every one, select all of a kind, reach one by its path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError, did_you_mean
from dovetail.config.interface import satisfies
from dovetail.config.typecheck import describe_value
from dovetail.config.values import configs_inside, join

C = TypeVar("C", bound=Config[Any])


def visit(config: Config[Any], *, whole: bool = True) -> Iterator[tuple[str, Config[Any]]]:
    """Yields every config of the tree with its path, parents first; not `whole`: but `apart()`."""
    config._settle()
    yield from _visit(config, config.tree_path(), whole)


def _visit(config: Config[Any], path: str, whole: bool) -> Iterator[tuple[str, Config[Any]]]:
    yield path, config
    fields = config.fields()
    for name, value in config._node.values.items():
        if whole or not fields[name].apart:
            for key, child in configs_inside(value, name):
                yield from _visit(child, join(path, key), whole)


def find(config: Config[Any], kind: Any) -> str | None:
    """Returns the path of the first config that builds a `kind`, or None."""
    check_kind(kind, "find")
    reached = visit(config, whole=False)
    return next((path for path, found in reached if matches(found, kind)), None)


def matches(config: Config[Any], kind: Any) -> bool:
    """Says whether a config is of a kind: what it builds, what it calls, or its config class."""
    if not isinstance(kind, type):
        return getattr(type(config), "_function", None) is kind
    if issubclass(kind, Config):
        return isinstance(config, kind)
    built = type(config).builds()
    return built is not None and satisfies(built, kind)


def check_kind(kind: Any, what: str) -> None:
    """Refuses what can be no kind: a config, a name, or nothing."""
    if isinstance(kind, Config):
        raise ConfigError(
            f"{what}: expected a class, got {describe_value(kind)}. Leave out .Config()."
        )
    if not callable(kind):
        raise ConfigError(f"{what}: expected a class or function, got {describe_value(kind)}.")


class Selection(Generic[C]):
    """All configs of a kind in a copy of a tree."""

    def __init__(self, root: C, kind: Any) -> None:
        """Copies the tree and finds the configs in it."""
        check_kind(kind, "select")
        self._root = root.clone()
        self._kind = kind
        reached = visit(self._root, whole=False)
        self.found = {path: found for path, found in reached if matches(found, kind)}

    def set(self, /, **values: Any) -> C:
        """Returns the tree with fields set on every selected config."""
        if not self.found:
            raise ConfigError(nothing_found(self._root, self._kind))
        for config in self.found.values():
            config.set(**values)
        return self._root.clone()

    def __iter__(self) -> Iterator[Config[Any]]:
        """Yields the selected configs."""
        return iter(self.found.values())

    def __len__(self) -> int:
        """Counts the selected configs."""
        return len(self.found)


def select(config: C, kind: Any) -> Selection[C]:
    """Selects every config that builds a `kind`; `.set(...)` returns an edited copy of the tree."""
    return Selection(config, kind)


def kind_name(kind: Any) -> str:
    """Names a kind the way people speak of it."""
    if isinstance(kind, type) and issubclass(kind, Config):
        return kind.__qualname__.rpartition("<locals>.")[2]
    return getattr(kind, "__name__", str(kind))


def nothing_found(config: Config[Any], kind: Any) -> str:
    """Returns the message for a kind that does not occur in a tree."""
    name = kind_name(kind)
    present = {type(found).display_name() for _, found in visit(config)}
    return f"No config in this tree builds a {name}. {did_you_mean(name, present)}"


def descend(config: Config[Any], path: str) -> tuple[Any, Any]:
    """Returns the holder of the last piece of a path, and the key of that piece in it."""
    *upper, last = path.split(".")
    holder: Any = config
    walked = ""
    for piece in upper:
        holder = _items(holder, walked)[_key(holder, piece, walked)]
        walked = join(walked, piece)
    return holder, _key(holder, last, walked, assigning=True)


def value_at(config: Config[Any], path: str) -> Any:
    """Returns the value at a path."""
    holder, key = descend(config, path)
    if isinstance(holder, dict) and key not in holder:
        raise _no_such_key(holder, path)
    return _items(holder, path)[key]


def _items(holder: Any, walked: str) -> Any:
    if isinstance(holder, Config):
        return holder._node.values
    if isinstance(holder, dict | list | tuple):
        return holder
    raise ConfigError(
        f"{walked} is {describe_value(holder)}, which has no fields. "
        "Set it to something that has (such as a part's name) first."
    )


def _key(holder: Any, piece: str, walked: str, assigning: bool = False) -> Any:
    """Returns the key that a piece of a path means in a holder."""
    items, where = _items(holder, walked), join(walked, piece)
    if isinstance(holder, Config):
        if piece not in items:
            raise holder._unknown(piece)
        return piece
    if isinstance(holder, dict):
        key = next((key for key in items if str(key) == piece), piece)
        if key not in items and not assigning:
            raise _no_such_key(items, where)
        return key
    if not (piece.isascii() and piece.isdecimal() and int(piece) < len(items)):
        kind = type(holder).__name__
        wanted = f"an index from 0 to {len(items) - 1}" if items else "nothing, for it is empty"
        raise ConfigError(f"{where}: {walked} is a {kind} of {len(items)}: expected {wanted}.")
    return int(piece)


def _no_such_key(holder: dict[Any, Any], where: str) -> ConfigError:
    name = where.rpartition(".")[2]
    return ConfigError(f"{where}: there is no key {name!r}. {did_you_mean(name, map(str, holder))}")
