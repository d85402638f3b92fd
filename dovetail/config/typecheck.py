"""Checks a value against a field's type, and says where, what was expected and what came."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

from dovetail.config.errors import ConfigError
from dovetail.config.required import REQUIRED

_SEQUENCES = {list: list, tuple: tuple, collections.abc.Sequence: tuple}
_MAPPINGS = (dict, collections.abc.Mapping)


def check(value: Any, hint: Any, where: str) -> Any:
    """Returns `value`, converted where that loses nothing, or raises a ConfigError naming `where`."""
    if value is REQUIRED or hint is Any or isinstance(hint, typing.TypeVar):
        return value
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _check_union(value, hint, where)
    if origin is Literal:
        if value not in get_args(hint):
            raise mismatch(value, hint, where)
        return value
    if (origin or hint) in _SEQUENCES:
        return _check_sequence(value, hint, where)
    if (origin or hint) in _MAPPINGS:
        return _check_mapping(value, hint, where)
    if (origin or hint) is collections.abc.Callable:
        if not callable(value) or is_config_class(type(value)):
            raise mismatch(value, hint, where)
        return value
    if is_config_class(origin or hint):
        return _check_config(value, hint, where)
    return _check_plain(value, hint, where)


def mismatch(value: Any, hint: Any, where: str, because: str = "") -> ConfigError:
    """Returns the error for a value of the wrong type."""
    reason = f" {because}" if because else ""
    return ConfigError(f"{where}: expected {describe(hint)}, got {describe_value(value)}.{reason}")


def describe(hint: Any) -> str:
    """Names a type the way a person would write it."""
    if hint is type(None):
        return "None"
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(argument) for argument in get_args(hint))
    if origin is Literal:
        return "one of " + ", ".join(repr(argument) for argument in get_args(hint))
    if origin is not None and is_config_class(origin):
        interface = get_args(hint)[0]
        return f"a config that builds a {getattr(interface, '__name__', interface)}"
    if origin is not None and get_args(hint):
        inner = ", ".join("..." if a is ... else describe(a) for a in get_args(hint) if a != [])
        return f"{getattr(origin, '__name__', origin)}[{inner}]"
    if is_config_class(hint):
        return f"a {hint.__qualname__}"
    return getattr(hint, "__name__", str(hint))


def describe_value(value: Any) -> str:
    """Names a value with its type."""
    if is_config_class(type(value)):
        return f"a {type(value).display_name()} config"
    return f"{value!r} ({type(value).__name__})"


def is_config_class(candidate: Any) -> bool:
    """Says whether a class is a Config (known by its fields, so this file needs no import of it)."""
    return isinstance(candidate, type) and hasattr(candidate, "__config_fields__")


def unmet(built: type, interface: Any) -> str:
    """Returns why `built` does not satisfy `interface`, or the empty string where it does."""
    if getattr(built, "stands_for_any", False):  # a reference to another part, known only later
        return ""
    if isinstance(interface, str | typing.ForwardRef | typing.TypeVar) or interface is Any:
        return ""
    interface = get_origin(interface) or interface
    if not isinstance(interface, type):
        return ""
    if not getattr(interface, "_is_protocol", False):
        return "" if issubclass(built, interface) else f"{built.__name__} is not a {interface.__name__}"
    for name, member in _protocol_methods(interface).items():
        found = next((vars(base)[name] for base in built.__mro__ if name in vars(base)), None)
        if found is None:
            return f"{built.__name__} has no method {name!r}"
        problem = _cannot_be_called_like(found, member)
        if problem:
            return f"{built.__name__}.{name} {problem}"
    return ""


def _check_union(value: Any, hint: Any, where: str) -> Any:
    options = get_args(hint)
    for option in options:  # an exact match first, so that 1 stays an int in `float | int`
        if isinstance(option, type) and type(value) is option:
            return value
    # One error among several options is worth showing when it is the only option of that kind.
    deeper: ConfigError | None = None
    for option in options:
        try:
            return check(value, option, where)
        except ConfigError as error:
            if is_config_class(get_origin(option) or option) and is_config_class(type(value)):
                deeper = error
    raise deeper or mismatch(value, hint, where)


def _check_sequence(value: Any, hint: Any, where: str) -> Any:
    if not isinstance(value, list | tuple):
        raise mismatch(value, hint, where)
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    container = _SEQUENCES[origin]
    if not arguments:
        return container(value)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
        if len(value) != len(arguments):
            raise mismatch(value, hint, where, f"It needs {len(arguments)} values.")
        hints = list(arguments)
    else:
        hints = [arguments[0]] * len(value)
    items = zip(value, hints, strict=True)
    return container(check(item, each, f"{where}.{i}") for i, (item, each) in enumerate(items))


def _check_mapping(value: Any, hint: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise mismatch(value, hint, where)
    key_hint, value_hint = get_args(hint) or (Any, Any)
    return {
        check(key, key_hint, f"{where} (key)"): check(item, value_hint, f"{where}.{key}")
        for key, item in value.items()
    }


def _check_config(value: Any, hint: Any, where: str) -> Any:
    if not is_config_class(type(value)):
        raise mismatch(value, hint, where)
    origin = get_origin(hint)
    if origin is None or not get_args(hint):
        if not isinstance(value, origin or hint):
            raise mismatch(value, hint, where)
        return value
    built = type(value).builds()
    reason = unmet(built, get_args(hint)[0]) if built is not None else ""
    if reason:
        raise mismatch(value, hint, where, f"{reason}.")
    return value


def _check_plain(value: Any, hint: Any, where: str) -> Any:
    if hint is None or hint is type(None):
        if value is not None:
            raise mismatch(value, type(None), where)
        return value
    if not isinstance(hint, type):
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # bool is a subclass of int in Python, but `num_layers=True` is always a mistake.
    if isinstance(value, bool) and hint in (int, float):
        raise mismatch(value, hint, where)
    if getattr(hint, "_is_protocol", False):
        return value
    if not isinstance(value, hint):
        raise mismatch(value, hint, where)
    return value


def _protocol_methods(interface: type) -> dict[str, Any]:
    methods: dict[str, Any] = {}
    for base in reversed(interface.__mro__):
        if getattr(base, "_is_protocol", False) and base is not typing.Protocol:
            methods.update(
                {
                    name: member
                    for name, member in vars(base).items()
                    if inspect.isfunction(member)
                    and (not name.startswith("_") or name == "__call__")
                }
            )
    return methods


def _cannot_be_called_like(found: Any, wanted: Any) -> str:
    """Tries the interface's call on the method found; names the first argument that does not fit."""
    if not callable(found):
        return ""  # a property may stand for a method without arguments; leave it to type checkers
    # `__wrapped__` is followed, so that a decorated method shows its own parameters.
    signature = inspect.signature(found)
    wanted_parameters = list(inspect.signature(wanted).parameters.values())
    positional: list[str] = []
    by_name: dict[str, None] = {}
    for parameter in wanted_parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(parameter.name)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            by_name[parameter.name] = None
    try:
        signature.bind(*positional, **by_name)
    except TypeError as error:
        return f"cannot be called as the interface says ({error})"
    return ""
