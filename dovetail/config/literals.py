"""Plain values as text and back: numbers, strings, None, and containers of them. No code is run."""

from __future__ import annotations

import ast
import math
from typing import Any

from dovetail.config.errors import ConfigError
from dovetail.config.required import REQUIRED

_NAMES = {"inf": math.inf, "nan": math.nan, "REQUIRED": REQUIRED}
_SCALARS = (bool, int, float, str, type(None))


def is_plain(value: Any) -> bool:
    """Says whether a value can be written as a literal."""
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(is_plain(item) for item in [*value, *value.values()])
    return value is REQUIRED or type(value) in _SCALARS


def write_literal(value: Any) -> str:
    """Writes a plain value; dicts are sorted, so that equal values give equal text."""
    if isinstance(value, dict):
        items = sorted((write_literal(key), write_literal(item)) for key, item in value.items())
        return "{" + ", ".join(f"{key}: {item}" for key, item in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write_literal, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(write_literal, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value)


def read_literal(text: str, where: str) -> Any:
    """Reads a plain value."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{where}: cannot read {_shortened(text)} as a value.") from error


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if type(value) in _SCALARS:
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _value(operand)
            if isinstance(inner, int | float) and not isinstance(inner, bool):
                return -inner
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item) for item in items)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            return {_value(key): _value(value) for key, value in pairs if key is not None}
    raise ValueError("not a plain value")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
