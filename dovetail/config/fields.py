"""The declared fields of a config class, their defaults and their types."""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from dovetail.config.errors import ConfigError
from dovetail.config.typecheck import check
from dovetail.config.values import REQUIRED, copy_into

# Class attributes that are not fields.
_NOT_FIELDS = (types.FunctionType, classmethod, staticmethod, property, type)


@dataclass(frozen=True)
class Field:
    """One declared field of a config class."""

    name: str
    default: Any = REQUIRED
    wraps: bool = False
    incidental: bool = False
    opaque: bool = False


class UnresolvedType(ConfigError):
    """The type of a field names something that is not defined (or not defined yet)."""


def wraps(default: Any = REQUIRED) -> Any:
    """Marks the field that receives the old config when replace() puts this one in its place.

    A module built from such a field is transparent: its parameters have the wrapper's path.
    """
    return Field(name="", default=default, wraps=True)


def incidental(default: Any = REQUIRED) -> Any:
    """Marks a field that does not change what is computed, such as a mesh or a logging interval.

    A run may be resumed with another value of it: see `identity()`.
    """
    return Field(name="", default=default, incidental=True)


def opaque(default: Any = REQUIRED) -> Any:
    """Marks a child that `select` and `replace` leave unchanged, with everything inside it.

    For example the teacher in distillation, which is loaded from another run.
    """
    return Field(name="", default=default, opaque=True)


def collect_fields(
    label: str, bases: Iterable[type], namespace: dict[str, Any]
) -> dict[str, Field]:
    """Returns inherited and own fields, and removes the own defaults from the class namespace."""
    bases = tuple(bases)
    fields: dict[str, Field] = {}
    for base in reversed(bases):
        fields.update(getattr(base, "__config_fields__", {}))
    own = [
        key for key, hint in namespace.get("__annotations__", {}).items() if _is_field(key, hint)
    ]
    for key in own:
        _refuse_method_name(label, key, bases)
        fields[key] = _field(key, namespace.pop(key, REQUIRED))
    for key in [key for key in namespace if key[:1] != "_" and key not in own]:
        if key in fields:  # a value without an annotation overrides an inherited default
            fields[key] = _field(key, namespace.pop(key), fields[key])
        elif bases and not _is_no_field(key, namespace):
            raise ConfigError(
                f"{label}.{key}: a field needs a type. Write `{key}: "
                f"{type(namespace[key]).__name__} = ...`, or name it _{key} if it is not a field."
            )
    return fields


def field_hints(config_class: type) -> dict[str, Any]:
    """Returns the types of all fields of a config class, resolved once."""
    cached = config_class.__dict__.get("__config_hints__")
    if cached is None:
        try:
            cached = get_type_hints(config_class)
        except NameError as error:
            raise UnresolvedType(
                f"{config_class.__module__}.{config_class.__qualname__}: cannot resolve a field's "
                f"type: {error}. Import that name at module level, not only for type checking."
            ) from error
        type.__setattr__(config_class, "__config_hints__", cached)
    return cached


def field_defaults(config_class: Any) -> dict[str, Any]:
    """Returns the defaults of all fields, checked once against their types."""
    cached = config_class.__dict__.get("__config_defaults__")
    if cached is not None:
        return cached
    fields: dict[str, Field] = config_class.__config_fields__
    try:
        hints = field_hints(config_class)
    except UnresolvedType:
        # A class may be used while its module is still being imported; it is checked later.
        return {name: field.default for name, field in fields.items()}
    label = f"{config_class.__qualname__} (default of a field): "
    checked = {name: check(f.default, hints[name], label + name) for name, f in fields.items()}
    type.__setattr__(config_class, "__config_defaults__", checked)
    return checked


def _is_field(key: str, hint: Any) -> bool:
    text = hint if isinstance(hint, str) else str(hint)
    return key[:1] != "_" and not text.removeprefix("typing.").startswith("ClassVar")


def _is_no_field(key: str, namespace: dict[str, Any]) -> bool:
    return key in namespace.get("__annotations__", {}) or isinstance(namespace[key], _NOT_FIELDS)


def _refuse_method_name(label: str, key: str, bases: tuple[type, ...]) -> None:
    owner = next((base for base in bases if hasattr(base, key)), None)
    if owner is not None:
        raise ConfigError(
            f"{label}: the field {key!r} has the name of a method of {owner.__qualname__}; "
            "rename it."
        )


def _field(key: str, default: Any, inherited: Field | None = None) -> Field:
    """Returns a field; its default is a copy, owned by the class."""
    declared = default if isinstance(default, Field) else (inherited or Field(key))
    value = default.default if isinstance(default, Field) else default
    return replace(declared, name=key, default=copy_into(None, "", value))
