"""`key.path=value` from the command line: typed, checked, and remembered as typed by the user."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError
from dovetail.config.fields import field_hints
from dovetail.config.functions import config_class_for
from dovetail.config.literals import read_literal
from dovetail.config.provenance import Origin, typed_by_user
from dovetail.config.registry import find_function, find_part, is_known_function
from dovetail.config.traverse import descend
from dovetail.config.typecheck import is_config_class

C = TypeVar("C", bound=Config[Any])

_WORDS = {"true": True, "false": False, "none": None, "null": None}
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[\w.]+")
_PART = re.compile(r"[A-Za-z_][\w.]*(:[\w.]+)?(\(\))?")


def apply_overrides(config: C, overrides: Iterable[str]) -> C:
    """Returns a copy of the tree with `key.path=value` texts applied in order."""
    result = config.clone()
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ConfigError(
                f"{override!r}: expected key.path=value, such as model.decoder.stack.num_layers=4."
            )
        path = path.strip()
        hint = hint_at(result, path)
        value = parse_value(text.strip(), hint, path)
        assign(result, path, value, typed_by_user(f"command line: {override}"))
    return result


def assign(config: Config[Any], path: str, value: Any, origin: Origin) -> None:
    """Sets the value at a path, through lists, tuples and dicts, with the field's own checks."""
    holder, last = descend(config, path)
    if isinstance(holder, Config):
        holder.set_value(last, value, origin)
        return
    if isinstance(holder, dict):
        changed: Any = {**holder, last: value}
    else:
        changed = type(holder)(
            value if index == int(last) else item for index, item in enumerate(holder)
        )
    assign(config, path.rpartition(".")[0], changed, origin)


def hint_at(config: Config[Any], path: str) -> Any:
    """Returns the declared type at a path."""
    holder, last = descend(config, path)
    if isinstance(holder, Config):
        return field_hints(type(holder))[last]
    above = _without_none(hint_at(config, path.rpartition(".")[0]))
    arguments = [argument for argument in get_args(above) if argument is not ...]
    if not arguments:
        return Any
    if (get_origin(above) is tuple) and len(arguments) > 1:
        return arguments[int(last)]
    return arguments[-1]


def parse_value(text: str, hint: Any, where: str) -> Any:
    """Reads what a person typed, guided by the type that is wanted."""
    options = [hint, *get_args(hint)] if _is_union(hint) else [hint]
    if any(_wants_config(option) for option in options) and _PART.fullmatch(text):
        if text.lower() not in _WORDS:
            return _named_config(text.removesuffix("()"), where)
    if _FUNCTION.fullmatch(text) and str not in options:
        return find_function(text, where)
    if text.lower() in _WORDS and not any(option is str for option in options):
        return _WORDS[text.lower()]
    try:
        value = read_literal(text, where)
    except ConfigError:
        if any(option is str or get_origin(option) is Literal or option is Any for option in options):
            return text
        raise
    # A number typed for a text field is text: `name=1`.
    if str in options and not isinstance(value, str) and value is not None:
        fits = any(isinstance(option, type) and isinstance(value, option) for option in options)
        return value if fits else text
    return value


def _named_config(name: str, where: str) -> Config[Any]:
    if is_known_function(name):
        return config_class_for(name, where)()
    part: Any = find_part(name, where)
    return part.Config()


def _wants_config(hint: Any) -> bool:
    return is_config_class(get_origin(hint) or hint)


def _is_union(hint: Any) -> bool:
    return get_origin(hint) is Union or type(hint).__name__ == "UnionType"


def _without_none(hint: Any) -> Any:
    if _is_union(hint):
        return next((option for option in get_args(hint) if option is not type(None)), Any)
    return hint
