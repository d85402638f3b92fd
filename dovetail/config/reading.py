"""Config text, back into a config. Names are looked up in the registry; nothing is imported or run.

Lines are first put into a tree by their paths, so their order does not matter, and then read from
the root down. A text that says a thing twice, or leaves an item of a list out, is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError
from dovetail.config.functions import config_class_for
from dovetail.config.literals import read_literal, shortened
from dovetail.config.provenance import Origin
from dovetail.config.registry import find_function, find_part, is_known_function
from dovetail.config.typecheck import describe_value
from dovetail.config.values import join

_CONFIG = re.compile(r"([\w.]+:[\w.]+)\(\)")
_FUNCTION = re.compile(r"[\w.]+:[\w.]+")
_CONTAINER = re.compile(r"(list|tuple)\(([0-9]{1,9})\)|(dict)\((.*)\)")
_PATH = re.compile(r"[\w\-]+(\.[\w\-]+)*")
_DEEPEST = 100  # pieces of a path; a real tree has a dozen


@dataclass
class _Entry:
    """A line, and the lines below it."""

    text: str | None = None
    line: int = 0
    below: dict[str, _Entry] = field(default_factory=dict)


def from_text(text: str) -> Config[Any]:
    """Reads what to_text() wrote."""
    root = _parse(text)
    match = _CONFIG.fullmatch(root.text or "")
    if match is None:
        got = shortened(root.text) if root.text else "nothing"
        raise ConfigError(f"Config text begins with 'module:Part()', got {got}.")
    config = make_config(match[1], f"line {root.line}")
    _fill(config, root, "")
    return config


def make_config(name: str, where: str) -> Config[Any]:
    """Makes a config of a registered part or a listed function, with its defaults."""
    if is_known_function(name):
        return config_class_for(name, where)()
    part: Any = find_part(name, where)
    return part.Config()


def _parse(text: str) -> _Entry:
    """Sorts the lines into a tree."""
    root = _Entry()
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if root.text is None:
            root.text, root.line = line, number
            continue
        path, equals, value = line.partition(" = ")
        path = path.strip()
        if not equals or not _PATH.fullmatch(path):
            raise ConfigError(f"line {number}: expected 'path = value', got {shortened(line)}.")
        entry = _entry_at(root, path.split("."), number)
        if entry.text is not None:
            raise ConfigError(f"line {number}: {path} was already set on line {entry.line}.")
        entry.text, entry.line = value.strip(), number
    return root


def _entry_at(root: _Entry, pieces: list[str], number: int) -> _Entry:
    if len(pieces) > _DEEPEST:
        raise ConfigError(
            f"line {number}: the path has {len(pieces)} pieces, more than {_DEEPEST}."
        )
    entry = root
    for piece in pieces:
        entry = entry.below.setdefault(piece, _Entry(line=number))
    return entry


def _fill(config: Config[Any], entry: _Entry, path: str) -> None:
    """Sets the fields of a config that stands at `path` from the lines below it."""
    config._node.place = path
    for name, below in entry.below.items():
        if name not in config.fields():
            raise ConfigError(f"line {below.line}: {config._unknown(name)}")
        value = _read(below, join(path, name), config._node.values[name])
        try:
            config.set_value(name, value, Origin("config text", below.line))
        except ConfigError as error:
            raise ConfigError(f"line {below.line}: {error}") from error


def _read(entry: _Entry, path: str, current: Any) -> Any:
    """Reads a line with all the lines below it."""
    where = f"line {entry.line}: {path}"
    if entry.text is None:
        return _changed(entry, path, current)
    if match := _CONFIG.fullmatch(entry.text):
        config = make_config(match[1], where)
        _fill(config, entry, path)
        return config
    if match := _CONTAINER.fullmatch(entry.text):
        kind = match[1] or match[3]
        return _container(kind, match[2] or match[4], entry, path)
    if entry.below:
        first = min(below.line for below in entry.below.values())
        raise ConfigError(f"line {first}: {path} is {shortened(entry.text)}, which has no fields.")
    if _FUNCTION.fullmatch(entry.text):
        return find_function(entry.text, where)
    return read_literal(entry.text, where)


def _changed(entry: _Entry, path: str, current: Any) -> Any:
    """Reads lines that change a default config, which needs no line of its own."""
    if not isinstance(current, Config):
        raise ConfigError(
            f"line {entry.line}: {path} is {describe_value(current)} by default, which has no "
            f"fields. A line '{path} = ...' is missing."
        )
    config = current.clone()
    _fill(config, entry, path)
    return config


def _container(kind: str, inner: str, entry: _Entry, path: str) -> Any:
    """Reads a container whose items stand on lines of their own: exactly those it announces."""
    names = _announced(kind, inner, entry, path)
    missing = [name for name in names if name not in entry.below]
    if missing:
        raise ConfigError(f"line {entry.line}: {path}.{missing[0]} has no line.")
    for name, below in entry.below.items():
        if name not in names:
            head = shortened(entry.text or "")
            raise ConfigError(f"line {below.line}: {path}.{name} is not in {head}.")
    items = {name: _read(entry.below[name], join(path, name), None) for name in names}
    if kind == "dict":
        return items
    return list(items.values()) if kind == "list" else tuple(items.values())


def _announced(kind: str, inner: str, entry: _Entry, path: str) -> list[str]:
    """Returns the names of the items that a line announces."""
    if kind != "dict":
        # One more than there are lines is enough to miss one, however long a list it claims to be.
        return [str(index) for index in range(min(int(inner), len(entry.below) + 1))]
    names = [name.strip() for name in inner.split(",")]
    if "" in names or len(set(names)) < len(names):
        raise ConfigError(f"line {entry.line}: {path}: cannot read {shortened(entry.text or '')}.")
    return names
