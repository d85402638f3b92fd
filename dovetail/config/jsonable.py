"""A config's values for programs: numbers stay numbers, and what JSON cannot hold is text."""

from __future__ import annotations

import math
from typing import Any

from dovetail.config.base import Config
from dovetail.config.literals import write_literal
from dovetail.config.required import REQUIRED
from dovetail.config.text import all_values
from dovetail.config.traverse import value_at
from dovetail.config.values import is_plain


def json_values(config: Config[Any]) -> dict[str, Any]:
    """Returns every value of the tree by path, defaults included, as JSON holds it.

    Configs, functions and containers of them are named as in `all_values`; the items of such
    containers have paths of their own.
    """
    tree = config.clone()
    return {path: _value(tree, path, text) for path, text in all_values(tree).items()}


def _value(tree: Config[Any], path: str, text: str) -> Any:
    value = value_at(tree, path) if path else tree
    return _plain(value) if is_plain(value) else text


def _plain(value: Any) -> Any:
    """Turns a plain value into JSON's types; it has no tuple, no infinity and no REQUIRED."""
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is REQUIRED or (isinstance(value, float) and not math.isfinite(value)):
        return write_literal(value)
    return value


def _key(key: Any) -> str:
    return key if isinstance(key, str) else write_literal(key)
