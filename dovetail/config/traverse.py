"""Walking a tree of configs: visit every one, select all of a kind, reach one by its path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from dovetail.config.base import Config, configs_inside
from dovetail.config.errors import ConfigError, did_you_mean

C = TypeVar("C", bound=Config[Any])


def visit(config: Config[Any]) -> Iterator[tuple[str, Config[Any]]]:
    """Yields every config of the tree with its path, parents first."""
    yield config.tree_path(), config
    for name in config.fields():
        for _, child in configs_inside(config.__dict__[name]):
            yield from visit(child)


def matches(config: Config[Any], kind: Any) -> bool:
    """Says whether a config builds a `kind` (a part or any class), or is of that config class."""
    if isinstance(kind, type) and issubclass(kind, Config):
        return isinstance(config, kind)
    built = type(config).builds()
    if isinstance(kind, type) and built is not None and issubclass(built, kind):
        return True
    return getattr(type(config), "_function", None) is kind and kind is not None


class Selection(Generic[C]):
    """All configs of a kind in a copy of a tree."""

    def __init__(self, root: C, kind: Any) -> None:
        """Copies the tree and finds the configs in it."""
        self._root = root.clone()
        self._kind = kind
        self.found = {path: found for path, found in visit(self._root) if matches(found, kind)}

    def set(self, **values: Any) -> C:
        """Returns the tree with fields set on every selected config."""
        if not self.found:
            raise ConfigError(nothing_found(self._root, self._kind))
        for config in self.found.values():
            config.set(**values)
        return self._root

    def __iter__(self) -> Iterator[Config[Any]]:
        """Yields the selected configs."""
        return iter(self.found.values())

    def __len__(self) -> int:
        """Counts the selected configs."""
        return len(self.found)


def select(config: C, kind: Any) -> Selection[C]:
    """Selects every config that builds a `kind`; `.set(...)` returns an edited copy of the tree."""
    return Selection(config, kind)


def nothing_found(config: Config[Any], kind: Any) -> str:
    """Returns the message for a kind that does not occur in a tree."""
    name = getattr(kind, "__name__", str(kind))
    present = {type(found).display_name() for _, found in visit(config)}
    return f"No config in this tree builds a {name}. {did_you_mean(name, present)}"


def descend(config: Config[Any], path: str) -> tuple[Any, str]:
    """Returns the holder of the last piece of a path (a config, list, tuple or dict), and that piece."""
    *upper, last = path.split(".")
    holder: Any = config
    walked: list[str] = []
    for piece in upper:
        holder = _step(holder, piece, ".".join(walked))
        walked.append(piece)
    if not isinstance(holder, Config | dict | list | tuple):
        raise ConfigError(f"{path}: {'.'.join(walked)} is {holder!r}, which has no fields.")
    _step(holder, last, ".".join(walked), assigning=True)
    return holder, last


def value_at(config: Config[Any], path: str) -> Any:
    """Returns the value at a path."""
    holder, last = descend(config, path)
    return _step(holder, last, path)


def _step(holder: Any, piece: str, walked: str, assigning: bool = False) -> Any:
    where = f"{walked}.{piece}" if walked else piece
    if isinstance(holder, Config):
        if piece not in holder.fields():
            raise holder._unknown(piece)
        return holder.__dict__[piece]
    if isinstance(holder, dict):
        if piece not in holder and not assigning:
            raise ConfigError(f"{where}: no such key. {did_you_mean(piece, map(str, holder))}")
        return holder.get(piece)
    if isinstance(holder, list | tuple):
        if not piece.isdigit() or int(piece) >= len(holder):
            raise ConfigError(f"{where}: expected an index from 0 to {len(holder) - 1}, got {piece!r}.")
        return holder[int(piece)]
    raise ConfigError(f"{where}: {walked} is {holder!r}, which has no fields.")
