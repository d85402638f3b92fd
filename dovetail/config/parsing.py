"""What a person types on the command line, read by the type that is wanted there.

Nobody should have to quote quotes for a shell: a word is a string where a string is wanted, a part
is named by its class, and `true`, `none` or `1e6` steps mean what they say.
"""

from __future__ import annotations

import collections.abc
import functools
import re
from typing import Any, Literal, get_args, get_origin

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError
from dovetail.config.functions import config_class_for
from dovetail.config.interface import satisfies
from dovetail.config.literals import read_literal, split_outside
from dovetail.config.registry import (
    find_function,
    find_part,
    is_known_function,
    known_parts,
    listed_functions,
)
from dovetail.config.typecheck import check, describe, is_union
from dovetail.config.values import is_config_class

_NONE = ("none", "null")
_BOOLS = {"true": True, "false": False}
_NAME = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")
_BRACKETS = {"(": ")", "[": "]"}
_FUNCTIONS = (collections.abc.Callable,)
_SEQUENCES = (list, tuple, collections.abc.Sequence)


class _DoesNotFit(Exception):
    """The text is no value of the type that was tried."""


def parse_value(text: str, hint: Any, where: str) -> Any:
    """Reads what a person typed, guided by the type that is wanted."""
    text = text.strip()
    options = get_args(hint) if is_union(hint) else (hint,)
    problem = ConfigError(f"{where}: expected {describe(hint)}, got {text!r}.")
    for option in sorted(options, key=_rank):
        try:
            return _parse_as(text, option, where)
        except _DoesNotFit:
            continue
        except ConfigError as error:
            problem = error  # says more than that nothing fits
    raise problem


def _rank(option: Any) -> int:
    """Orders the options of a union: anything is a string, so that comes last."""
    kind = get_origin(option) or option
    if kind is str:
        return 4
    if kind is Any:
        return 3
    if is_config_class(kind) or kind in _FUNCTIONS:
        return 2
    return 0 if kind in (type(None), bool, Literal) else 1


def _parse_as(text: str, option: Any, where: str) -> Any:
    kind = get_origin(option) or option
    if kind is type(None) or (kind is Any and text.lower() in _NONE):
        return _word(text, dict.fromkeys(_NONE))
    if kind is bool or (kind is Any and text.lower() in _BOOLS):
        return _word(text, _BOOLS)
    if kind is Literal:
        words = {str(argument): argument for argument in get_args(option)}
        return words[text] if text in words else _literal(text, option, where)
    if kind is str:
        return _literal(text, str, where) if text[:1] in ("'", '"') else text
    if is_config_class(kind):
        return _config(text, where, *get_args(option))
    if kind in _FUNCTIONS:
        return _function(text, where)
    if kind in _SEQUENCES:
        return _sequence(text, option, where)
    if kind is Any:
        return _anything(text, where)
    return _literal(text, option, where)


def _word(text: str, words: dict[str, Any]) -> Any:
    if text.lower() not in words:
        raise _DoesNotFit
    return words[text.lower()]


def _literal(text: str, option: Any, where: str) -> Any:
    try:
        value = read_literal(text, where)
        if option is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e6 steps
        return check(value, option, where)
    except ConfigError as error:
        raise _DoesNotFit from error


def _config(text: str, where: str, interface: Any = Any) -> Config[Any]:
    name = text.removesuffix("()")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: expected the name of a part, such as Linear, got {text!r}. "
            f"Its fields are set on their own: {where}=Linear {where}.bias=true."
        )
    if is_known_function(name):
        return config_class_for(name, where)()
    wanted = get_origin(interface) or interface
    choices = functools.partial(_choices, wanted) if isinstance(wanted, type) else None
    part: Any = find_part(name, where, choices)
    return part.Config()


def _choices(interface: type) -> list[str]:
    """Returns the names that would do where an interface is asked for."""

    def makes_it(function: str) -> bool:
        built = _built_by(function)
        return built is not None and satisfies(built, interface)

    parts = known_parts(lambda part: satisfies(part, interface))
    return [*parts, *filter(makes_it, listed_functions())]


def _built_by(function: str) -> type | None:
    try:
        return config_class_for(function).builds()
    except ConfigError:
        return None  # a built-in that does not say its arguments


def _function(text: str, where: str) -> Any:
    if not _NAME.fullmatch(text):
        raise _DoesNotFit
    return find_function(text, where, by_short_name=True)


def _sequence(text: str, option: Any, where: str) -> Any:
    """Reads `(1, 2)`, `[1, 2]` or `1,2`, each item by its own type."""
    inner = text[1:-1] if text and _BRACKETS.get(text[0]) == text[-1] else text
    pieces = split_outside(inner)
    if not pieces[-1].strip():  # `(1,)`, `[]`
        pieces.pop()
    arguments = get_args(option)
    each = [arguments[0] if arguments else Any] * len(pieces)
    if (get_origin(option) is tuple) and arguments[-1] is not ... and len(arguments) == len(pieces):
        each = list(arguments)
    items = [
        parse_value(p, h, f"{where}.{i}") for i, (p, h) in enumerate(zip(pieces, each, strict=True))
    ]
    return check(items, option, where)


def _anything(text: str, where: str) -> Any:
    if is_known_function(text):
        return find_function(text, where)
    if _NAME.fullmatch(text.removesuffix("()")) and text.endswith("()"):
        return _config(text, where)
    try:
        return read_literal(text, where)
    except ConfigError:
        return text
