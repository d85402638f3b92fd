"""Plain values as text and back: numbers, strings, None, and containers of them. No code is run."""

from __future__ import annotations

import ast
import math
import warnings
from typing import Any

from dovetail.config.errors import ConfigError
from dovetail.config.required import REQUIRED
from dovetail.config.values import SCALARS, in_order

_NAMES = {"inf": math.inf, "nan": math.nan, "REQUIRED": REQUIRED}
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "'\""


def write_literal(value: Any) -> str:
    """Writes a plain value; dicts are sorted, so that equal values give equal text."""
    if isinstance(value, dict):
        keys = sorted(value, key=in_order)
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
    """Reads a plain value."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # '\d' is a fine string, however Python dislikes it
            return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"{where}: cannot read {shortened(text)} as a value. Expected a number, a quoted "
            "string, None, True, False, or a list, tuple or dict of these."
        ) from error


def split_outside(text: str, separator: str = ",") -> list[str]:
    """Splits text at a separator that stands outside all brackets and quotes."""
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


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if type(value) in SCALARS:
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _value(operand)
            if type(inner) in (int, float):
                return -inner
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item) for item in items)
        case ast.Dict(keys=keys, values=values):
            pairs = [(_value(k), _value(v)) for k, v in zip(keys, values, strict=True) if k]
            if len(dict(pairs)) == len(keys):  # no `**`, and no key twice
                return dict(pairs)
    raise ValueError("not a plain value")
