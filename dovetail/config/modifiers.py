"""Modifiers: named functions from config to config, for `--with NAME:key=value`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError, did_you_mean
from dovetail.config.overrides import parse_value
from dovetail.config.provenance import through
from dovetail.config.typecheck import check

Modifier = Callable[..., Any]
F = TypeVar("F", bound=Modifier)

_modifiers: dict[str, Modifier] = {}


def modifier(name: str) -> Callable[[F], F]:
    """Registers a modifier. It receives a copy, so that it can never change its argument."""

    def register(function: F) -> F:
        @functools.wraps(function)
        def on_a_copy(config: Any, *args: Any, **kwargs: Any) -> Any:
            result = function(config.clone(), *args, **kwargs)
            if not isinstance(result, Config):
                raise ConfigError(f"The modifier {name!r} returned {result!r}, not a config.")
            return result

        _modifiers[name] = on_a_copy
        return on_a_copy  # type: ignore[return-value]  # same signature, by functools.wraps

    return register


def modifiers() -> dict[str, Modifier]:
    """Returns the registered modifiers by name."""
    return dict(sorted(_modifiers.items()))


def apply_modifier(config: Any, text: str) -> Any:
    """Applies `NAME` or `NAME:key=value,key=value`, as typed on the command line."""
    name, _, arguments = text.partition(":")
    if name not in _modifiers:
        raise ConfigError(f"--with {name}: no such modifier. {did_you_mean(name, _modifiers)}")
    function = _modifiers[name]
    values = _arguments(function, name, arguments)
    with through(f"--with {text}"):
        return function(config, **values)


def _arguments(function: Modifier, name: str, text: str) -> dict[str, Any]:
    parameters = list(inspect.signature(function).parameters)[1:]
    hints = get_type_hints(function)
    values = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in parameters:
            raise ConfigError(f"--with {name}: no argument {key!r}. {did_you_mean(key, parameters)}")
        hint, where = hints.get(key, Any), f"--with {name}:{key}"
        values[key] = check(parse_value(value, hint, where), hint, where)
    return values
