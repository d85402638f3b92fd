"""Type checks: a value against a field's type, and a class against an interface (a Protocol).

Interfaces are checked on classes alone, before anything is built.
"""

from __future__ import annotations

import collections.abc
import dis
import enum
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, Union, get_args, get_origin

from dovetail.config.errors import ConfigError
from dovetail.config.values import REQUIRED, is_config, is_config_class

_SEQUENCES: dict[Any, Any] = {list: list, tuple: tuple, collections.abc.Sequence: tuple}
_MAPPINGS = (dict, collections.abc.Mapping)


def check(value: Any, hint: Any, where: str) -> Any:
    """Returns `value`, losslessly converted if needed; errors begin with `where`."""
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
            raise type_error(value, hint, where)
        return value
    if is_config_class(kind):
        return _check_config(value, hint, where)
    return _check_plain(value, kind, where)


def type_error(value: Any, hint: Any, where: str, because: str = "") -> ConfigError:
    """Returns the error for a value of the wrong type."""
    reason = f" {because}" if because else ""
    return ConfigError(f"{where}: expected {describe(hint)}, got {describe_value(value)}.{reason}")


def is_union(hint: Any) -> bool:
    """Says whether a type is a union, written either way."""
    return get_origin(hint) in (Union, types.UnionType)


def describe(hint: Any) -> str:
    """Returns the name of a type for messages."""
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
    """Returns a value with its type for messages."""
    if is_config(value):
        return f"a {type(value).display_name()} config"
    if value is None:
        return "None"
    text = repr(value)
    return f"{text if len(text) <= 100 else text[:97] + '...'} ({type(value).__name__})"


def plain_number(value: Any) -> Any:
    """Converts numbers of other libraries to Python's, where that is lossless."""
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
    # If only one option can be meant, its own error is more specific.
    raise errors[0] if len(errors) == 1 else type_error(value, hint, where)


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
    raise type_error(value, hint, where)


def _check_sequence(value: Any, hint: Any, where: str) -> Any:
    if not isinstance(value, list | tuple):
        raise type_error(value, hint, where)
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is tuple and arguments and arguments[-1] is not ...:
        if len(value) != len(arguments):
            raise type_error(value, hint, where, f"It needs {len(arguments)} values.")
        hints = list(arguments)
    else:
        hints = [arguments[0] if arguments else Any] * len(value)
    items = zip(value, hints, strict=True)
    return _SEQUENCES[origin](check(v, h, f"{where}.{i}") for i, (v, h) in enumerate(items))


def _check_mapping(value: Any, hint: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise type_error(value, hint, where)
    key_hint, value_hint = get_args(hint) or (Any, Any)
    return {
        check(key, key_hint, f"{where} (a key)"): check(item, value_hint, f"{where}.{key}")
        for key, item in value.items()
    }


def _check_config(value: Any, hint: Any, where: str) -> Any:
    if not is_config(value):
        own = getattr(value, "Config", None)
        wants = f"Did you mean {value.__qualname__}.Config()?" if is_config_class(own) else ""
        raise type_error(value, hint, where, wants if isinstance(value, type) else "")
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if not isinstance(value, kind):
        raise type_error(value, hint, where)
    built = type(value).builds()
    reason = interface_mismatch(built, arguments[0]) if arguments and built is not None else ""
    if reason:
        raise type_error(value, hint, where, f"{reason}.")
    return value


def _check_plain(value: Any, hint: Any, where: str) -> Any:
    if hint is None or hint is type(None):
        if value is not None:
            raise type_error(value, hint, where)
        return value
    if is_protocol(hint):
        return _check_protocol(value, hint, where)
    if not isinstance(hint, type):
        return value
    if hint in (int, float):
        return _check_number(value, hint, where)
    if not isinstance(value, hint):
        raise type_error(value, hint, where)
    if hint is str and type(value) is not str:
        raise type_error(value, hint, where, f"Give it as the plain text {str.__str__(value)!r}.")
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
        raise type_error(value, hint, where, "No float has exactly this value.")
    raise type_error(value, hint, where)


def _check_protocol(value: Any, hint: type, where: str) -> Any:
    """Checks a value against a Protocol: a function by its signature, an object by its class."""
    call = vars(hint).get("__call__")
    is_function = callable(value) and not is_config(value)
    if call is not None and is_function:
        problem = call_mismatch(value, call, drop_self=True)
        reason = f"It {problem}." if problem else ""
    else:
        reason = f"{interface_mismatch(type(value), hint)}."
    if reason.strip("."):
        raise type_error(value, hint, where, reason)
    return value


def interface_mismatch(built: type, interface: Any) -> str:
    """Returns why `built` does not satisfy `interface`, or the empty string if it does."""
    interface = get_origin(interface) or interface
    if getattr(
        built, "stands_for_any", False
    ):  # a reference to another component, known only later
        return ""
    if not isinstance(interface, type) or interface in (Any, object):
        return ""  # Any, a type variable or an unresolved name requires nothing
    return _unmet(built, interface)


def satisfies(built: type, interface: type) -> bool:
    """Says whether `built` is a subclass of a class, or has the methods of an interface."""
    return not _unmet(built, interface)


def is_protocol(candidate: Any) -> bool:
    """Says whether a type is an interface."""
    return isinstance(candidate, type) and bool(getattr(candidate, "_is_protocol", False))


def call_mismatch(found: Any, wanted: Callable[..., Any], drop_self: bool = False) -> str:
    """Returns why `found` cannot be called as the interface declares, or the empty string.

    Args:
        found: the method or function to check.
        wanted: the method of the interface.
        drop_self: whether `found` takes no `self` where `wanted` does.
    """
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""  # some built-in functions have no signature
    parameters = list(inspect.signature(wanted).parameters.values())[1 if drop_self else 0 :]
    in_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter.name for parameter in parameters if parameter.kind in in_place]
    by_name = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        signature.bind(*positional, **by_name)
    except TypeError as error:
        wanted_call = str(inspect.signature(wanted))
        return f"cannot be called as the interface says, {wanted_call}: {error}"
    return ""


@functools.lru_cache(maxsize=4096)
def _unmet(built: type, interface: type) -> str:
    if not is_protocol(interface):
        return (
            ""
            if issubclass(built, interface)
            else f"{built.__name__} is not a {interface.__name__}"
        )
    for name, wanted in _methods(interface).items():
        # In the classes' own dicts, where a static method can be recognized.
        found = next((vars(base)[name] for base in built.__mro__ if name in vars(base)), None)
        if found is None:
            return f"{built.__name__} has no method {name!r}"
        problem = _problem(found, wanted)
        if problem:
            return f"{built.__name__}.{name} {problem}"
    for name in _properties(interface):
        if name not in _attributes(built):
            return f"{built.__name__} has no property or attribute {name!r}"
    return ""


def _problem(found: Any, wanted: Any) -> str:
    if isinstance(found, staticmethod | classmethod):
        without_self = isinstance(found, staticmethod)
        return call_mismatch(found.__func__, wanted, drop_self=without_self)
    if not callable(found):
        # A property may return a callable; any other attribute is a mistake.
        return "" if isinstance(found, property) else "is not a method"
    return call_mismatch(found, wanted)


def _methods(interface: type) -> dict[str, Any]:
    """Returns the methods that an interface requires: the public ones, and `__call__`."""
    return {
        name: member
        for name, member in _members(interface)
        if inspect.isfunction(member) and (not name.startswith("_") or name == "__call__")
    }


def _properties(interface: type) -> list[str]:
    """Returns the properties that an interface requires."""
    return [name for name, member in _members(interface) if isinstance(member, property)]


def _members(interface: type) -> Iterator[tuple[str, Any]]:
    for base in reversed(interface.__mro__):
        if is_protocol(base) and base is not typing.Protocol:
            yield from vars(base).items()


def _attributes(built: type) -> set[str]:
    """Returns the attributes of a class, and those that its methods set on an instance."""
    names: set[str] = set()
    for base in built.__mro__:
        names |= vars(base).keys() | getattr(base, "__annotations__", {}).keys()
        for member in vars(base).values():
            if inspect.isfunction(member):
                code = dis.get_instructions(member)
                names |= {each.argval for each in code if each.opname == "STORE_ATTR"}
    return names
