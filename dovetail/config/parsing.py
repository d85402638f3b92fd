"""Literals of config text, and values typed on the command line.

A literal is a number, a string, None, a bool, or a container of these. What a person types is
parsed by the type of the field: a bare word is a string where a string is expected, a component is
named by its class, and `true`, `none` and `1e6` (for an int) work. No code is run.
"""

from __future__ import annotations

import ast
import collections.abc
import functools
import math
import re
import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError
from dovetail.config.functions import config_class_for
from dovetail.config.registry import (
    find_component,
    find_function,
    is_known_function,
    known_components,
    listed_functions,
)
from dovetail.config.typecheck import check, describe, is_union, satisfies
from dovetail.config.values import REQUIRED, SCALARS, is_config_class, sort_key

_NAMES = {"inf": math.inf, "nan": math.nan, "REQUIRED": REQUIRED}
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "'\""
_NONE = ("none", "null")
_BOOLS = {"true": True, "false": False}
_NAME = re.compile(r"[A-Za-z_][\w.]*(:[A-Za-z_][\w.]*)?")
_BRACKETS = {"(": ")", "[": "]"}
_FUNCTIONS = (collections.abc.Callable,)
_SEQUENCES = (list, tuple, collections.abc.Sequence)


def write_literal(value: Any) -> str:
    """Writes a literal. Dicts are sorted, so that equal values have equal text."""
    if isinstance(value, dict):
        keys = sorted(value, key=sort_key)
        return "{" + ", ".join(f"{write_literal(k)}: {write_literal(value[k])}" for k in keys) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write_literal, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(write_literal, value)) + ("," if len(value) == 1 else "") + ")"
    try:
        return repr(value)
    except ValueError as error:  # Python refuses to write integers of thousands of digits
        raise ConfigError(f"A number cannot be written as text: {error}.") from error


def read_literal(text: str, where: str) -> Any:
    """Reads a literal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # '\d' is a valid string, though Python warns about it
            return _literal_value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"{where}: cannot read {shortened(text)} as a value. Expected a number, a quoted "
            "string, None, True, False, or a list, tuple or dict of these."
        ) from error


def split_outside(text: str, separator: str = ",") -> list[str]:
    """Splits text at separators outside of brackets and quotes."""
    pieces, depth, quote = [""], 0, ""
    for before, character in zip(" " + text, text, strict=False):
        if quote:
            quote = "" if character == quote and before != "\\" else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING + _CLOSING:
            depth += 1 if character in _OPENING else -1
        elif character == separator and depth == 0:
            pieces.append("")
            continue
        pieces[-1] += character
    return pieces


def shortened(text: str) -> str:
    """Quotes a text for a message."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


class _DoesNotFit(Exception):
    """The text is not a value of the type that was tried."""


def parse_value(text: str, hint: Any, where: str) -> Any:
    """Parses what a person typed, by the expected type."""
    text = text.strip()
    options = get_args(hint) if is_union(hint) else (hint,)
    if str in options and not _is_list(text):  # of a `str | tuple[str, ...]`
        options = tuple(each for each in options if get_origin(each) not in _SEQUENCES)
    problem = ConfigError(f"{where}: expected {describe(hint)}, got {text!r}.")
    for option in sorted(options, key=_rank):
        try:
            return _parse_as(text, option, where)
        except _DoesNotFit:
            continue
        except ConfigError as error:
            problem = error  # more specific
    raise problem


def choices_of(hint: Any) -> list[str]:
    """Returns the words that a type allows: bools, literals, and components by name."""
    words: list[str] = []
    for option in sorted(get_args(hint) if is_union(hint) else (hint,), key=_rank):
        kind = get_origin(option) or option
        if kind is bool:
            words += _BOOLS
        elif kind is type(None):
            words.append(_NONE[0])
        elif kind is Literal:
            words += map(str, get_args(option))
        elif is_config_class(kind):
            wanted: Any = next(iter(get_args(option)), Any)
            wanted = get_origin(wanted) or wanted
            words += _choices(wanted) if isinstance(wanted, type) else []
    return words


def _rank(option: Any) -> int:
    """Orders the options of a union. Any text is a string, so that comes last."""
    kind = get_origin(option) or option
    if kind is str:
        return 4
    if kind is Any:
        return 3
    if is_config_class(kind) or kind in _FUNCTIONS:
        return 2
    return 0 if kind in (type(None), bool, Literal) else 1


def _is_list(text: str) -> bool:
    """Says whether a text is written as a list: in brackets, or with commas."""
    return _BRACKETS.get(text[:1]) == text[-1:] or len(split_outside(text)) > 1


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
            f"{where}: expected the name of a component, such as Linear, got {text!r}. "
            f"Its fields are set on their own: {where}=Linear {where}.bias=true."
        )
    wanted = get_origin(interface) or interface
    choices = functools.partial(_choices, wanted) if isinstance(wanted, type) else None
    return default_config(name, where, choices)


def default_config(
    name: str, where: str, choices: Callable[[], list[str]] | None = None
) -> Config[Any]:
    """Returns the default config of a component or a listed function; see `find_component`."""
    if is_known_function(name):
        return config_class_for(name, where)()
    component: Any = find_component(name, where, choices)
    return component.Config()


def _choices(interface: type) -> list[str]:
    """Returns the names of the components and functions that satisfy an interface."""

    def fits(function: str) -> bool:
        built = _built_by(function)
        return built is not None and satisfies(built, interface)

    components = known_components(lambda component: satisfies(component, interface))
    return [*components, *filter(fits, listed_functions())]


def _built_by(function: str) -> type | None:
    try:
        return config_class_for(function).builds()
    except ConfigError:
        return None  # a built-in without a signature


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


def _literal_value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if type(value) in SCALARS:
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _literal_value(operand)
            if type(inner) in (int, float):
                return -inner
        case ast.List(elts=items):
            return [_literal_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_literal_value(item) for item in items)
        case ast.Dict(keys=keys, values=values):
            pairs = [
                (_literal_value(k), _literal_value(v))
                for k, v in zip(keys, values, strict=True)
                if k
            ]
            if len(dict(pairs)) == len(keys):  # no `**`, and no key twice
                return dict(pairs)
    raise ValueError("not a plain value")
