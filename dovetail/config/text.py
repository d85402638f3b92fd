"""A config as sorted text; `reading` brings it back.

    dovetail.trainer.trainer:Trainer()
    learner.optimizer = dovetail.learner.optimizers:Lion()
    model.decoder.stack.num_layers = 4

One line a value, defaults left out. `name()` is the config of a part or of a listed function,
`name` alone is a function as a value, `list(2)`, `tuple(2)` and `dict(a, b)` announce items on
lines of their own, and everything else is a Python literal.
"""

from __future__ import annotations

from typing import Any

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError
from dovetail.config.fields import field_defaults
from dovetail.config.functions import FunctionConfig
from dovetail.config.literals import write_literal
from dovetail.config.registry import function_name, part_name
from dovetail.config.values import CONTAINERS, is_plain, items_of, join, path_in_order, same

Lines = dict[str, str]


def to_text(config: Config[Any]) -> str:
    """Writes a config as sorted text that reads back into an equal config."""
    config = config.clone()
    lines = _different(config, type(config)(), "")
    body = [f"{path} = {lines[path]}" for path in sorted(lines, key=path_in_order)]
    return "\n".join([f"{config_name(config)}()", *body]) + "\n"


def all_values(config: Config[Any]) -> Lines:
    """Returns every value of the tree by path, defaults included, written as text."""
    lines = _everything(config.clone(), "")
    return {path: lines[path] for path in sorted(lines, key=path_in_order)}


def config_name(config: Config[Any]) -> str:
    """Returns the name by which text refers to what a config builds."""
    if isinstance(config, FunctionConfig):
        return type(config).public_name()
    built: Any = type(config).builds()
    if built is None or built.Config is not type(config):
        raise ConfigError(
            f"{type(config).__qualname__} cannot be written as text, because it is not the Config "
            "of any part. Nest it in a part of its own."
        )
    return part_name(built)


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
    """Writes the fields of a config in which it differs from another of the same class."""
    lines: Lines = {}
    for name, value in config._node.values.items():
        before, where = base._node.values[name], join(path, name)
        if same(value, before):
            continue
        try:
            if isinstance(value, Config) and type(value) is type(before):
                lines.update(_different(value, before, where))
            else:
                lines.update(_whole(value, where))
        except ConfigError as error:
            raise _located(error, where, config.get_origin(name)) from error
    return lines


def _whole(value: Any, path: str) -> Lines:
    """Writes a value of which nothing is taken for granted but the defaults of its own class."""
    lines = {path: _head(value)}
    if isinstance(value, Config):
        lines.update(_different(value, type(value)(), path))
    elif not is_plain(value):
        for key, item in items_of(value):
            lines.update(_whole(item, join(path, str(key))))
    return lines


def _everything(value: Any, path: str) -> Lines:
    """Writes a value with all defaults."""
    lines = {path: _head(value)}
    if isinstance(value, Config):
        defaults = field_defaults(type(value))
        for name, inner in value._node.values.items():
            where = join(path, name)
            try:
                lines.update(_everything(inner, where))
            except ConfigError as error:
                # Text leaves defaults out, so a default needs no name of its own.
                if inner is not defaults[name]:
                    raise _located(error, where, value.get_origin(name)) from error
                lines[where] = f"<{type(inner).__name__}>"
    elif not is_plain(value):
        for key, item in items_of(value):
            lines.update(_everything(item, join(path, str(key))))
    return lines


def _head(value: Any) -> str:
    """Writes a value's own line: all of a plain value, the shape of a container of others."""
    if isinstance(value, CONTAINERS) and not is_plain(value):
        inner = ", ".join(value) if isinstance(value, dict) else len(value)
        return f"{type(value).__name__}({inner})"
    return write_value(value)


def _located(error: ConfigError, path: str, origin: Any) -> ConfigError:
    """Says which field an error is about, and where it was set; the innermost field counts."""
    if isinstance(error, _Located):
        return error
    return _Located(f"{path}: {error}" + (f" It was set at {origin}." if origin else ""))


class _Located(ConfigError):
    """An error that already says its path."""
