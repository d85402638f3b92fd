"""Checks a value against a field's type, and says where, what was expected and what came."""

from __future__ import annotations

import collections.abc
import enum
import numbers
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

from dovetail.config.errors import ConfigError
from dovetail.config.interface import cannot_be_called_like, is_protocol, unmet
from dovetail.config.required import REQUIRED
from dovetail.config.values import is_config, is_config_class

_SEQUENCES: dict[Any, Any] = {list: list, tuple: tuple, collections.abc.Sequence: tuple}
_MAPPINGS = (dict, collections.abc.Mapping)


def check(value: Any, hint: Any, where: str) -> Any:
    """Returns `value`, converted where that loses nothing, or raises an error that says `where`."""
    if value is REQUIRED or hint is Any or isinstance(hint, typing.TypeVar):
        return plain_number(value)
    kind = get_origin(hint) or hint
    if is_union(hint):
        return _check_union(value, hint, where)
    if kind is Literal:
        return _check_literal(value, hint, where)
    if kind in _SEQUENCES:
        return _check_sequence(value, hint, where)
    if kind in _MAPPINGS:
        return _check_mapping(value, hint, where)
    if kind is collections.abc.Callable:
        if not callable(value) or is_config(value):
            raise mismatch(value, hint, where)
        return value
    if is_config_class(kind):
        return _check_config(value, hint, where)
    return _check_plain(value, kind, where)


def mismatch(value: Any, hint: Any, where: str, because: str = "") -> ConfigError:
    """Returns the error for a value of the wrong type."""
    reason = f" {because}" if because else ""
    return ConfigError(f"{where}: expected {describe(hint)}, got {describe_value(value)}.{reason}")


def is_union(hint: Any) -> bool:
    """Says whether a type is a union, written either way."""
    return get_origin(hint) in (Union, types.UnionType)


def describe(hint: Any) -> str:
    """Names a type the way a person would write it."""
    if hint is None or hint is type(None):
        return "None"
    origin, arguments = get_origin(hint), get_args(hint)
    if is_union(hint):
        return " or ".join(describe(argument) for argument in arguments)
    if origin is Literal:
        return "one of " + ", ".join(repr(argument) for argument in arguments)
    if (origin or hint) is collections.abc.Callable:
        return "a function"
    if is_config_class(origin):
        return f"a config that builds a {getattr(arguments[0], '__name__', arguments[0])}"
    if is_config_class(hint):
        return "a config" if hint.__qualname__ == "Config" else f"a {hint.__qualname__}"
    name = getattr(origin or hint, "__name__", str(hint))
    if not arguments:
        return name
    return f"{name}[{', '.join('...' if a is ... else describe(a) for a in arguments)}]"


def describe_value(value: Any) -> str:
    """Names a value with its type."""
    if is_config(value):
        return f"a {type(value).display_name()} config"
    if value is None:
        return "None"
    text = repr(value)
    return f"{text if len(text) <= 100 else text[:97] + '...'} ({type(value).__name__})"


def plain_number(value: Any) -> Any:
    """Turns the numbers of other libraries into Python's own, where that loses nothing."""
    if type(value) in (bool, int, float) or isinstance(value, enum.Enum):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):
        return float(value)
    return value


def _check_union(value: Any, hint: Any, where: str) -> Any:
    options = get_args(hint)
    if type(value) in options:  # an exact match first, so that 1 stays an int in `float | int`
        return value
    errors: list[ConfigError] = []
    for option in options:
        try:
            return check(value, option, where)
        except ConfigError as error:
            if _is_meant(option, value):
                errors.append(error)
    # Where only one option was meant, its own error says more than "none of these".
    raise errors[0] if len(errors) == 1 else mismatch(value, hint, where)


def _is_meant(option: Any, value: Any) -> bool:
    kind = get_origin(option) or option
    if is_config(value):
        return is_config_class(kind)
    if isinstance(value, list | tuple):
        return kind in _SEQUENCES
    return isinstance(value, dict) and kind in _MAPPINGS


def _check_literal(value: Any, hint: Any, where: str) -> Any:
    if any(type(value) is type(option) and value == option for option in get_args(hint)):
        return value
    raise mismatch(value, hint, where)


def _check_sequence(value: Any, hint: Any, where: str) -> Any:
    if not isinstance(value, list | tuple):
        raise mismatch(value, hint, where)
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is tuple and arguments and arguments[-1] is not ...:
        if len(value) != len(arguments):
            raise mismatch(value, hint, where, f"It needs {len(arguments)} values.")
        hints = list(arguments)
    else:
        hints = [arguments[0] if arguments else Any] * len(value)
    items = zip(value, hints, strict=True)
    return _SEQUENCES[origin](check(v, h, f"{where}.{i}") for i, (v, h) in enumerate(items))


def _check_mapping(value: Any, hint: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise mismatch(value, hint, where)
    key_hint, value_hint = get_args(hint) or (Any, Any)
    return {
        check(key, key_hint, f"{where} (a key)"): check(item, value_hint, f"{where}.{key}")
        for key, item in value.items()
    }


def _check_config(value: Any, hint: Any, where: str) -> Any:
    if not is_config(value):
        own = getattr(value, "Config", None)
        wants = f"Did you mean {value.__qualname__}.Config()?" if is_config_class(own) else ""
        raise mismatch(value, hint, where, wants if isinstance(value, type) else "")
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if not isinstance(value, kind):
        raise mismatch(value, hint, where)
    built = type(value).builds()
    reason = unmet(built, arguments[0]) if arguments and built is not None else ""
    if reason:
        raise mismatch(value, hint, where, f"{reason}.")
    return value


def _check_plain(value: Any, hint: Any, where: str) -> Any:
    if hint is None or hint is type(None):
        if value is not None:
            raise mismatch(value, hint, where)
        return value
    if is_protocol(hint):
        return _check_behaviour(value, hint, where)
    if not isinstance(hint, type):
        return value
    if hint in (int, float):
        return _check_number(value, hint, where)
    if not isinstance(value, hint):
        raise mismatch(value, hint, where)
    if hint is str and type(value) is not str:
        raise mismatch(value, hint, where, f"Give it as the plain text {str.__str__(value)!r}.")
    return value


def _check_number(value: Any, hint: type, where: str) -> Any:
    number = plain_number(value)
    if type(number) is hint:
        return number
    # bool is a subclass of int in Python, but `num_layers=True` is always a mistake.
    if hint is float and type(number) is int:
        try:
            if float(number) == number:
                return float(number)
        except OverflowError:
            pass
        raise mismatch(value, hint, where, "No float has exactly this value.")
    raise mismatch(value, hint, where)


def _check_behaviour(value: Any, hint: type, where: str) -> Any:
    """Checks a value typed by what it can do: a function by its call, an object by its class."""
    call = vars(hint).get("__call__")
    is_function = callable(value) and not is_config(value)
    if call is not None and is_function:
        problem = cannot_be_called_like(value, call, drop_self=True)
        reason = f"It {problem}." if problem else ""
    else:
        reason = f"{unmet(type(value), hint)}."
    if reason.strip("."):
        raise mismatch(value, hint, where, reason)
    return value
