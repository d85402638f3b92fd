"""Modifiers: named functions from config to config, for `--with NAME:key=value`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError, did_you_mean
from dovetail.config.literals import split_outside
from dovetail.config.parsing import parse_value
from dovetail.config.provenance import through
from dovetail.config.typecheck import check, describe_value

Modifier = Callable[..., Any]
F = TypeVar("F", bound=Modifier)

_modifiers: dict[str, Modifier] = {}


def modifier(name: str) -> Callable[[F], F]:
    """Registers a modifier. It receives a copy, so that it can never change its argument."""

    def register(function: F) -> F:
        @functools.wraps(function)
        def on_a_copy(config: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = function(config.clone(), *args, **kwargs)
            if not isinstance(result, Config):
                raise ConfigError(
                    f"The modifier {name!r} returned {describe_value(result)}, not a config. "
                    "Does it end with `return config`?"
                )
            return result.clone()  # what it may have kept is not what it gave

        _refuse_second(name, function)
        _modifiers[name] = on_a_copy
        return on_a_copy  # type: ignore[return-value]  # same signature, by functools.wraps

    return register


def modifiers() -> dict[str, Modifier]:
    """Returns the registered modifiers by name."""
    return dict(sorted(_modifiers.items()))


def apply_modifier(config: Any, text: str) -> Any:
    """Applies `NAME` or `NAME:key=value,key=value`, as typed on the command line."""
    name, _, arguments = text.partition(":")
    name = name.strip()
    if name not in _modifiers:
        raise ConfigError(f"--with {name}: no such modifier. {did_you_mean(name, _modifiers)}")
    function = _modifiers[name]
    values = _arguments(function, name, arguments)
    with through(f"--with {text}"):
        return function(config, **values)


def _arguments(function: Modifier, name: str, text: str) -> dict[str, Any]:
    """Reads the arguments, each by its declared type."""
    parameters = dict(list(inspect.signature(function).parameters.items())[1:])
    hints = get_type_hints(function)
    values: dict[str, Any] = {}
    for item in filter(str.strip, split_outside(text)):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        where = f"--with {name}:{key}"
        if not equals:
            raise ConfigError(
                f"{where}: expected {name}:key=value,key=value, got {item!r}. A value with a comma "
                "stands in brackets, as in axes=(1,2)."
            )
        if key not in parameters:
            raise ConfigError(f"{where}: no such argument. {did_you_mean(key, parameters)}")
        if key in values:
            raise ConfigError(f"{where}: given twice.")
        hint = hints.get(key, Any)
        values[key] = check(parse_value(value, hint, where), hint, where)
    missing = [p.name for p in parameters.values() if _is_needed(p) and p.name not in values]
    if missing:
        raise ConfigError(
            f"--with {name}: needs {', '.join(missing)}. Write {name}:{missing[0]}=value."
        )
    return values


def _is_needed(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variable


def _refuse_second(name: str, function: Modifier) -> None:
    """A name means one modifier; the same one may be defined again (a module that is reloaded)."""
    first = _modifiers.get(name)
    described = [(f.__module__, f.__qualname__) for f in (first, function) if f is not None]
    if len(set(described)) > 1:
        raise ConfigError(f"The modifier {name!r} is already defined by {'.'.join(described[0])}.")
