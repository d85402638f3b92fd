"""What a config class declares: its fields, their defaults and their types."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_type_hints

from dovetail.config.errors import ConfigError
from dovetail.config.required import REQUIRED


@dataclass(frozen=True)
class Field:
    """One declared field of a config class."""

    name: str
    default: Any = REQUIRED
    wraps: bool = False


def wraps(default: Any = REQUIRED) -> Any:
    """Marks the field that receives the whole old config when this one replaces another.

    The part built from such a field is transparent: its parameters keep the wrapper's own path.
    """
    return Field(name="", default=default, wraps=True)


def collect_fields(
    name: str, bases: tuple[type, ...], namespace: dict[str, Any], reserved: frozenset[str]
) -> dict[str, Field]:
    """Returns inherited and own fields, and takes the own defaults out of the class namespace."""
    fields: dict[str, Field] = {}
    for base in reversed(bases):
        fields.update(getattr(base, "__config_fields__", {}))
    own = {key: hint for key, hint in namespace.get("__annotations__", {}).items() if key[:1] != "_"}
    for key in own:
        if key in reserved:
            raise ConfigError(f"{name}: the field name {key!r} is a method of every config; rename it.")
        default = namespace.pop(key, REQUIRED)
        field = default if isinstance(default, Field) else Field(key, default)
        fields[key] = replace(field, name=key)
    # A value without an annotation re-sets the default of an inherited field.
    for key in [key for key in namespace if key in fields and key not in own]:
        fields[key] = replace(fields[key], default=namespace.pop(key))
    return fields


def field_hints(config_class: type) -> dict[str, Any]:
    """Returns the types of all fields of a config class, resolved once."""
    cached = config_class.__dict__.get("__config_hints__")
    if cached is None:
        try:
            cached = get_type_hints(config_class)
        except NameError as error:
            raise ConfigError(
                f"{config_class.__module__}.{config_class.__qualname__}: cannot resolve a field's type: "
                f"{error}. Import that name at module level, not only for type checking."
            ) from error
        type.__setattr__(config_class, "__config_hints__", cached)
    return cached
