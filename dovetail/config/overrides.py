"""`key.path=value` from the command line: typed, checked, and remembered as typed by the user."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, get_args, get_origin

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError
from dovetail.config.fields import field_hints
from dovetail.config.parsing import parse_value
from dovetail.config.provenance import Origin, typed_by_user
from dovetail.config.traverse import descend
from dovetail.config.typecheck import is_union

C = TypeVar("C", bound=Config[Any])


def apply_overrides(config: C, overrides: Iterable[str]) -> C:
    """Returns a copy of the tree with `key.path=value` texts applied in order."""
    result = config.clone()
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals or not all(path.split(".")):
            raise ConfigError(
                f"{override!r}: expected key.path=value, such as model.decoder.stack.num_layers=4."
            )
        value = parse_value(text.strip(), hint_at(result, path), path)
        assign(result, path, value, typed_by_user(f"command line: {override}"))
    return result


def assign(config: Config[Any], path: str, value: Any, origin: Origin) -> None:
    """Sets the value at a path, through lists, tuples and dicts, with the field's own checks."""
    holder, key = descend(config, path)
    if isinstance(holder, Config):
        holder.set_value(key, value, origin)
        return
    if isinstance(holder, dict):
        changed: Any = {**holder, key: value}
    else:
        changed = type(holder)(value if i == key else item for i, item in enumerate(holder))
    assign(config, path.rpartition(".")[0], changed, origin)


def hint_at(config: Config[Any], path: str) -> Any:
    """Returns the declared type at a path."""
    holder, key = descend(config, path)
    if isinstance(holder, Config):
        return field_hints(type(holder))[key]
    above = _holding(hint_at(config, path.rpartition(".")[0]), type(holder))
    arguments = [argument for argument in get_args(above) if argument is not ...]
    if not arguments:
        return Any
    fixed = get_origin(above) is tuple and ... not in get_args(above)
    return arguments[key] if fixed else arguments[-1]


def _holding(hint: Any, kind: type) -> Any:
    """Returns the option of a union that a container of this kind was checked against."""
    if not is_union(hint):
        return hint
    options = [option for option in get_args(hint) if get_args(option)]
    return next((o for o in options if get_origin(o) is kind), options[0] if options else Any)
