"""Does a class satisfy an interface? Asked of classes alone, before anything is built."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, get_origin


def unmet(built: type, interface: Any) -> str:
    """Returns why `built` does not satisfy `interface`, or the empty string where it does."""
    interface = get_origin(interface) or interface
    if getattr(built, "stands_for_any", False):  # a reference to another part, known only later
        return ""
    if not isinstance(interface, type) or interface in (Any, object):
        return ""  # Any, a type variable or an unresolved name promises nothing
    return _unmet(built, interface)


def satisfies(built: type, interface: type) -> bool:
    """Says whether `built` is of a class, or has what an interface asks for."""
    return not _unmet(built, interface)


def is_protocol(candidate: Any) -> bool:
    """Says whether a type is an interface."""
    return isinstance(candidate, type) and bool(getattr(candidate, "_is_protocol", False))


def cannot_be_called_like(found: Any, wanted: Callable[..., Any], drop_self: bool = False) -> str:
    """Tries the interface's call on what was found; returns why it fails, or the empty string.

    Args:
        found: the method or function that stands there.
        wanted: the method of the interface.
        drop_self: whether `found` takes no `self` where `wanted` does.
    """
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""  # some built-in functions do not say their parameters
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
        # Looked up in the classes themselves, where a static method is still known as one.
        found = next((vars(base)[name] for base in built.__mro__ if name in vars(base)), None)
        if found is None:
            return f"{built.__name__} has no method {name!r}"
        problem = _problem(found, wanted)
        if problem:
            return f"{built.__name__}.{name} {problem}"
    return ""


def _problem(found: Any, wanted: Any) -> str:
    if isinstance(found, staticmethod | classmethod):
        without_self = isinstance(found, staticmethod)
        return cannot_be_called_like(found.__func__, wanted, drop_self=without_self)
    if not callable(found):
        # A property may return something callable; anything else in a method's place is a mistake.
        return "" if isinstance(found, property) else "is not a method"
    return cannot_be_called_like(found, wanted)


def _methods(interface: type) -> dict[str, Any]:
    """Returns the methods that an interface asks for: the public ones, and `__call__`."""
    return {
        name: member
        for base in reversed(interface.__mro__)
        if is_protocol(base) and base is not typing.Protocol
        for name, member in vars(base).items()
        if inspect.isfunction(member) and (not name.startswith("_") or name == "__call__")
    }
