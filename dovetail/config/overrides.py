"""Changes from the command line: overrides `key.path=value`, and `--with NAME:key=value`.

A modifier is a named function from config to config.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError, did_you_mean
from dovetail.config.fields import field_hints
from dovetail.config.old_names import OLD_ARGUMENTS, OLD_MODIFIERS
from dovetail.config.parsing import choices_of, parse_value, split_outside
from dovetail.config.provenance import Origin, through, typed_by_user
from dovetail.config.registry import Registry
from dovetail.config.traverse import descend
from dovetail.config.typecheck import check, describe_value, is_union

C = TypeVar("C", bound=Config[Any])
Modifier = Callable[..., Any]
F = TypeVar("F", bound=Modifier)

_modifiers: Registry[Modifier] = Registry("modifier")


def apply_overrides(config: C, overrides: Iterable[str]) -> C:
    """Returns a copy of the tree with `key.path=value` overrides applied in order."""
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
    """Sets the value at a path, also inside lists, tuples and dicts, with the field's checks."""
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


def value_choices(config: Config[Any], name: str) -> list[str]:
    """Returns the words that a person may type as a field's value, where they are a short list."""
    return choices_of(field_hints(type(config))[name])


def _holding(hint: Any, kind: type) -> Any:
    """Returns the option of a union that describes a container of this type."""
    if not is_union(hint):
        return hint
    options = [option for option in get_args(hint) if get_args(option)]
    return next((o for o in options if get_origin(o) is kind), options[0] if options else Any)


def modifier(name: str) -> Callable[[F], F]:
    """Registers a modifier. It receives a copy, so that it cannot change its argument."""

    def register(function: F) -> F:
        @functools.wraps(function)
        def on_a_copy(config: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = function(config.clone(), *args, **kwargs)
            if not isinstance(result, Config):
                raise ConfigError(
                    f"The modifier {name!r} returned {describe_value(result)}, not a config. "
                    "Does it end with `return config`?"
                )
            return result.clone()  # the function may keep a reference to its result

        _modifiers.register(name, on_a_copy, f"{function.__module__}.{function.__qualname__}")
        return on_a_copy  # type: ignore[return-value]  # same signature, by functools.wraps

    return register


def modifiers() -> dict[str, Modifier]:
    """Returns the registered modifiers by name."""
    return _modifiers.all()


def apply_modifier(config: Any, text: str) -> Any:
    """Applies `NAME` or `NAME:key=value,key=value`, as typed on the command line."""
    name, _, arguments = text.partition(":")
    name = name.strip()
    if name not in modifiers():
        name = OLD_MODIFIERS.get(name, name)
    function = _modifiers.find(name, f"--with {name}")
    values = _arguments(function, name, arguments)
    with through(f"--with {text}"):
        return function(config, **values)


def _arguments(function: Modifier, name: str, text: str) -> dict[str, Any]:
    """Reads the arguments, each by its declared type."""
    parameters = dict(list(inspect.signature(function).parameters.items())[1:])
    hints = get_type_hints(function)
    values: dict[str, Any] = {}
    for item in filter(str.strip, split_outside(text)):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        where = f"--with {name}:{key}"
        if not equals:
            raise ConfigError(
                f"{where}: expected {name}:key=value,key=value, got {item!r}. A value with a comma "
                "needs brackets, as in axes=(1,2)."
            )
        key = OLD_ARGUMENTS.get((name, key), key)
        if key not in parameters:
            raise ConfigError(f"{where}: no such argument. {did_you_mean(key, parameters)}")
        if key in values:
            raise ConfigError(f"{where}: given twice.")
        hint = hints.get(key, Any)
        values[key] = check(parse_value(value, hint, where), hint, where)
    missing = [p.name for p in parameters.values() if _is_needed(p) and p.name not in values]
    if missing:
        raise ConfigError(
            f"--with {name}: needs {', '.join(missing)}. Write {name}:{missing[0]}=value."
        )
    return values


def _is_needed(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variable
