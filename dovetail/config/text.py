"""The text form of a config: to_text() and from_text(), and json_values() for programs.

    dovetail.trainer:Trainer()
    learner.optimizer = dovetail.learner:Lion()
    model.decoder.stack.num_layers = 4

One line per value, sorted, without defaults. `name()` is the config of a component or of a listed
function; `name` alone is a function as a value; `list(2)`, `tuple(2)` and `dict(a, b)` declare
items on lines of their own; everything else is a Python literal.

Reading looks names up in the registry; it imports and runs nothing. Lines may come in any order. A
text that sets a path twice, or leaves out an item of a list, is an error.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError
from dovetail.config.fields import field_defaults
from dovetail.config.functions import FunctionConfig
from dovetail.config.parsing import default_config, read_literal, shortened, write_literal
from dovetail.config.provenance import Origin
from dovetail.config.registry import component_name, find_function, function_name
from dovetail.config.traverse import value_at
from dovetail.config.typecheck import describe_value
from dovetail.config.values import (
    CONTAINERS,
    REQUIRED,
    is_plain,
    items_of,
    join,
    path_sort_key,
    same,
)

Lines = dict[str, str]

_CONFIG = re.compile(r"([\w.]+:[\w.]+)\(\)")
_FUNCTION = re.compile(r"[\w.]+:[\w.]+")
_CONTAINER = re.compile(r"(list|tuple)\(([0-9]{1,9})\)|(dict)\((.*)\)")
_PATH = re.compile(r"[\w\-]+(\.[\w\-]+)*")
_MAX_DEPTH = 100  # pieces of a path; a real tree has a dozen


def to_text(config: Config[Any]) -> str:
    """Writes a config as sorted text that reads back into an equal config."""
    config = config.clone()
    lines = _different(config, type(config)(), "")
    body = [f"{path} = {lines[path]}" for path in sorted(lines, key=path_sort_key)]
    return "\n".join([f"{config_name(config)}()", *body]) + "\n"


def all_values(config: Config[Any]) -> Lines:
    """Returns every value of the tree by path, defaults included, written as text."""
    lines = _with_defaults(config.clone(), "")
    return {path: lines[path] for path in sorted(lines, key=path_sort_key)}


def config_name(config: Config[Any]) -> str:
    """Returns the name by which text refers to what a config builds."""
    if isinstance(config, FunctionConfig):
        return config._public_name
    built: Any = type(config).builds()
    if built is None or built.Config is not type(config):
        raise ConfigError(
            f"{type(config).__qualname__} cannot be written as text, because it is not the Config "
            "of any component. Nest it in a component of its own."
        )
    return component_name(built)


def write_value(value: Any) -> str:
    """Writes one value that needs no further lines."""
    if isinstance(value, Config):
        return f"{config_name(value)}()"
    if is_plain(value):
        return write_literal(value)
    if callable(value):
        return function_name(value)
    raise ConfigError(
        f"{value!r} ({type(value).__name__}) cannot be written as text. Use plain values (numbers, "
        "strings, None, lists, dicts), configs, or named functions."
    )


def _different(config: Config[Any], base: Config[Any], path: str) -> Lines:
    """Writes the fields of a config that differ from another config of the same class."""
    lines: Lines = {}
    for name, value in config._node.values.items():
        before, where = base._node.values[name], join(path, name)
        if same(value, before):
            continue
        try:
            if isinstance(value, Config) and type(value) is type(before):
                lines.update(_different(value, before, where))
            else:
                lines.update(_full(value, where))
        except ConfigError as error:
            raise _located(error, where, config.get_origin(name)) from error
    return lines


def _full(value: Any, path: str) -> Lines:
    """Writes a value in full, except for defaults of its own class."""
    lines = {path: _head(value)}
    if isinstance(value, Config):
        lines.update(_different(value, type(value)(), path))
    elif not is_plain(value):
        for key, item in items_of(value):
            lines.update(_full(item, join(path, str(key))))
    return lines


def _with_defaults(value: Any, path: str) -> Lines:
    """Writes a value with all defaults."""
    lines = {path: _head(value)}
    if isinstance(value, Config):
        defaults = field_defaults(type(value))
        for name, inner in value._node.values.items():
            where = join(path, name)
            try:
                lines.update(_with_defaults(inner, where))
            except ConfigError as error:
                # Text omits defaults, so a default needs no name.
                if inner is not defaults[name]:
                    raise _located(error, where, value.get_origin(name)) from error
                lines[where] = f"<{type(inner).__name__}>"
    elif not is_plain(value):
        for key, item in items_of(value):
            lines.update(_with_defaults(item, join(path, str(key))))
    return lines


def _head(value: Any) -> str:
    """Writes a value's own line: a plain value, or the shape of a container."""
    if isinstance(value, CONTAINERS) and not is_plain(value):
        inner = ", ".join(value) if isinstance(value, dict) else len(value)
        return f"{type(value).__name__}({inner})"
    return write_value(value)


def _located(error: ConfigError, path: str, origin: Any) -> ConfigError:
    """Adds the path and the origin of the innermost field to an error."""
    if isinstance(error, _Located):
        return error
    return _Located(f"{path}: {error}" + (f" It was set at {origin}." if origin else ""))


class _Located(ConfigError):
    """An error that already has a path."""


@dataclass
class _Entry:
    """A line, and the lines of paths below it."""

    text: str | None = None
    line: int = 0
    below: dict[str, _Entry] = field(default_factory=dict)


def from_text(text: str) -> Config[Any]:
    """Reads what to_text() wrote."""
    root = _parse(text)
    match = _CONFIG.fullmatch(root.text or "")
    if match is None:
        got = shortened(root.text) if root.text else "nothing"
        raise ConfigError(f"Config text begins with 'module:Component()', got {got}.")
    config = default_config(match[1], f"line {root.line}")
    _fill(config, root, "")
    return config


def _parse(text: str) -> _Entry:
    """Parses the lines into a tree by path."""
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
    if len(pieces) > _MAX_DEPTH:
        raise ConfigError(
            f"line {number}: the path has {len(pieces)} pieces, more than {_MAX_DEPTH}."
        )
    entry = root
    for piece in pieces:
        entry = entry.below.setdefault(piece, _Entry(line=number))
    return entry


def _fill(config: Config[Any], entry: _Entry, path: str) -> None:
    """Sets the fields of the config at `path` from the lines below it."""
    config._node.copied_from = path
    for old_name, below in entry.below.items():
        name = old_name if old_name in config.fields() else config._renamed_field(old_name)
        if name is None:
            raise ConfigError(f"line {below.line}: {config._unknown(old_name)}")
        if name != old_name and name in entry.below:
            raise ConfigError(
                f"line {below.line}: {join(path, old_name)} was renamed to {name!r}, which is also "
                f"set on line {entry.below[name].line}."
            )
        value = _read(below, join(path, name), config._node.values[name])
        if isinstance(value, dict):
            value = config._renamed_keys(name, value)
        try:
            config.set_value(name, value, Origin("config text", below.line))
        except ConfigError as error:
            raise ConfigError(f"line {below.line}: {error}") from error


def _read(entry: _Entry, path: str, current: Any) -> Any:
    """Reads a line and the lines below it."""
    where = f"line {entry.line}: {path}"
    if entry.text is None:
        return _changed(entry, path, current)
    if match := _CONFIG.fullmatch(entry.text):
        config = default_config(match[1], where)
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
    """Reads lines that change a default config, which has no line of its own."""
    if not isinstance(current, Config):
        raise ConfigError(
            f"line {entry.line}: {path} is {describe_value(current)} by default, which has no "
            f"fields. A line '{path} = ...' is missing."
        )
    config = current.clone()
    _fill(config, entry, path)
    return config


def _container(kind: str, inner: str, entry: _Entry, path: str) -> Any:
    """Reads a container whose items are on lines of their own: exactly the declared ones."""
    names = _declared(kind, inner, entry, path)
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


def _declared(kind: str, inner: str, entry: _Entry, path: str) -> list[str]:
    """Returns the names of the items that a line declares."""
    if kind != "dict":
        # One more than there are lines suffices to report a missing one, however long the list.
        return [str(index) for index in range(min(int(inner), len(entry.below) + 1))]
    names = [name.strip() for name in inner.split(",")]
    if "" in names or len(set(names)) < len(names):
        raise ConfigError(f"line {entry.line}: {path}: cannot read {shortened(entry.text or '')}.")
    return names


def json_values(config: Config[Any]) -> dict[str, Any]:
    """Returns every value of the tree by path, defaults included, in JSON types.

    Configs, functions and containers of them are written as in `all_values`; the items of such
    containers have paths of their own.
    """
    tree = config.clone()
    return {path: _json_value(tree, path, text) for path, text in all_values(tree).items()}


def _json_value(tree: Config[Any], path: str, text: str) -> Any:
    value = value_at(tree, path) if path else tree
    return _json_plain(value) if is_plain(value) else text


def _json_plain(value: Any) -> Any:
    """Converts a plain value to JSON types; JSON has no tuple, infinity or REQUIRED."""
    if isinstance(value, dict):
        keys = [key if isinstance(key, str) else write_literal(key) for key in value]
        return dict(zip(keys, map(_json_plain, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return [_json_plain(item) for item in value]
    if value is REQUIRED or (isinstance(value, float) and not math.isfinite(value)):
        return write_literal(value)
    return value
