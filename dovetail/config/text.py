"""A config as sorted text, and back.

    dovetail.trainer.trainer:Trainer()
    learner.optimizer = dovetail.learner.optimizers:Lion()
    model.decoder.stack.num_layers = 4

One line a value, defaults left out. `name()` is the config of a part or of a listed function, `name`
alone is a function as a value, and everything else is a Python literal. Reading looks names up in the
registry; it never imports and never runs code.
"""

from __future__ import annotations

import re
from typing import Any

from dovetail.config.base import Config, same
from dovetail.config.errors import ConfigError
from dovetail.config.functions import FunctionConfig, config_class_for
from dovetail.config.literals import is_plain, read_literal, write_literal
from dovetail.config.overrides import assign
from dovetail.config.provenance import Origin
from dovetail.config.registry import (
    find_function,
    find_part,
    function_name,
    is_known_function,
    part_name,
)

_CONFIG = re.compile(r"([\w.]+:[\w.]+)\(\)")
_FUNCTION = re.compile(r"[\w.]+:[\w.]+")
_CONTAINER = re.compile(r"(list|tuple|dict)\((.*)\)")
_KEY = re.compile(r"[\w\-]+")


def to_text(config: Config[Any]) -> str:
    """Writes a config as sorted text that reads back into an equal config."""
    lines = _config_lines(config, "", type(config)())
    body = [f"{path} = {value}" for path, value in sorted(lines.items(), key=_in_order)]
    return "\n".join([f"{config_name(config)}()", *body]) + "\n"


def from_text(text: str) -> Config[Any]:
    """Reads what to_text() wrote."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    head = _CONFIG.fullmatch(lines[0].strip()) if lines else None
    if head is None:
        first = repr(lines[0][:80]) if lines else "nothing"
        raise ConfigError(f"Config text begins with 'module:Part()', got {first}.")
    root = make_config(head[1], "line 1")
    for number, line in enumerate(lines[1:], start=2):
        path, equals, value = line.partition(" = ")
        if not equals:
            raise ConfigError(f"line {number}: expected 'path = value', got {line[:80]!r}.")
        assign(root, path.strip(), _read(value.strip(), path), Origin("config text", number))
    return root


def all_values(config: Config[Any]) -> dict[str, str]:
    """Returns every value of the tree by path, defaults included, written as text."""
    lines = {"": f"{config_name(config)}()"}
    lines.update(_config_lines(config, "", None))
    return dict(sorted(lines.items(), key=_in_order))


def config_name(config: Config[Any]) -> str:
    """Returns the name by which text refers to what a config builds."""
    if isinstance(config, FunctionConfig):
        return type(config).public_name()
    built = type(config).builds()
    if built is None:
        raise ConfigError(f"{config!r} cannot be written as text: it is not known what it builds.")
    return part_name(built)


def make_config(name: str, where: str) -> Config[Any]:
    """Makes a config of a registered part or a listed function, with its defaults."""
    if is_known_function(name):
        return config_class_for(name, where)()
    part: Any = find_part(name, where)
    return part.Config()


def write_value(value: Any) -> str:
    """Writes one value that is no container of configs."""
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


def _config_lines(config: Config[Any], prefix: str, base: Config[Any] | None) -> dict[str, str]:
    """Writes the fields of a config that differ from `base` (all of them where that is None)."""
    lines: dict[str, str] = {}
    for name in config.fields():
        before = base.__dict__[name] if base is not None else None
        lines.update(_lines(config.__dict__[name], f"{prefix}{name}", before, base is None))
    return lines


def _lines(value: Any, path: str, before: Any, everything: bool) -> dict[str, str]:
    if not everything and same(value, before):
        return {}
    try:
        if isinstance(value, Config):
            return _nested_config(value, path, before, everything)
        if isinstance(value, list | tuple | dict) and not is_plain(value):
            return _container(value, path, everything)
        return {path: write_value(value)}
    except ConfigError as error:
        raise error if str(error).startswith(path) else ConfigError(f"{path}: {error}") from error


def _nested_config(value: Config[Any], path: str, before: Any, everything: bool) -> dict[str, str]:
    if not everything and type(value) is type(before):
        return _config_lines(value, f"{path}.", before)
    base = None if everything else type(value)()
    return {path: write_value(value), **_config_lines(value, f"{path}.", base)}


def _container(value: Any, path: str, everything: bool) -> dict[str, str]:
    """Writes a container of configs or functions: its shape on one line, then each item."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or not _KEY.fullmatch(key):
                raise ConfigError(f"{path}: the key {key!r} must be letters, digits, '_' or '-'.")
        shape, items = f"dict({', '.join(sorted(value))})", list(value.items())
    else:
        shape = f"{type(value).__name__}({len(value)})"
        items = [(str(index), item) for index, item in enumerate(value)]
    lines = {path: shape}
    for key, item in items:
        lines.update(_lines(item, f"{path}.{key}", _NOTHING, everything))
    return lines


def _read(text: str, where: str) -> Any:
    """Reads the right side of a line."""
    if match := _CONFIG.fullmatch(text):
        return make_config(match[1], where)
    if _FUNCTION.fullmatch(text):
        return find_function(text, where)
    if match := _CONTAINER.fullmatch(text):
        return _empty_container(match[1], match[2], where)
    return read_literal(text, where)


def _empty_container(kind: str, inner: str, where: str) -> Any:
    """Makes a container whose items the following lines fill."""
    if kind == "dict":
        return {key.strip(): PENDING for key in inner.split(",") if key.strip()}
    if not inner.isdigit() or int(inner) > 10_000:
        raise ConfigError(f"{where}: expected '{kind}(count)', got '{kind}({inner})'.")
    items = [PENDING] * int(inner)
    return tuple(items) if kind == "tuple" else items


def _in_order(line: tuple[str, str]) -> list[tuple[int, int, str]]:
    """Sorts by path, numbers as numbers, so that a parent always stands before its children."""
    pieces = line[0].split(".")
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in pieces if p]


class _Nothing:
    """Equal to no value."""


_NOTHING = _Nothing()
PENDING: Any = read_literal("REQUIRED", "")
