"""Config: a typed, by-value description of a part, from which the part is built.

A config class is declared like a dataclass. Its instances form a tree: assignment copies, so every
config has at most one parent, and an error can always say the whole path.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar, dataclass_transform

from dovetail.config.errors import ConfigError, did_you_mean
from dovetail.config.fields import Field, collect_fields, field_hints, wraps
from dovetail.config.provenance import Origin, here
from dovetail.config.required import REQUIRED
from dovetail.config.typecheck import check

T_co = TypeVar("T_co", covariant=True)

_RESERVED = frozenset(
    "build builds clone display_name explicit fields get_origin is_set set set_value tree_path".split()
)


@dataclass_transform(kw_only_default=True, field_specifiers=(wraps,))
class ConfigMeta(type):
    """Turns the annotations of a config class into fields."""

    __config_fields__: dict[str, Field]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any
    ) -> ConfigMeta:
        """Creates the class with its own and inherited fields."""
        label = namespace.get("__qualname__", name)
        fields = collect_fields(label, bases, namespace, _RESERVED if bases else frozenset())
        namespace["__config_fields__"] = fields
        return super().__new__(mcs, name, bases, namespace, **kwargs)


class _Node:
    """What a config keeps beside its fields (on a plain base, so that these are no fields)."""

    _explicit: dict[str, Origin]
    _parent: Any
    _key: str


class Config(_Node, Generic[T_co], metaclass=ConfigMeta):
    """The description of a part of type T: fields, some of them the configs of its children."""

    def __init__(self, **values: Any) -> None:
        """Sets the given fields; the others start as copies of their defaults."""
        _slot(self, "_explicit", {})
        _slot(self, "_parent", None)
        _slot(self, "_key", "")
        for field in type(self).__config_fields__.values():
            self.__dict__[field.name] = _adopt(self, field.name, field.default)
        origin = here()
        for name, value in values.items():
            self.set_value(name, value, origin)

    # What a config builds.

    @classmethod
    def builds(cls) -> type | None:
        """Returns the class of what `build()` returns, or None where that is unknown."""
        raise ConfigError(f"{cls.__qualname__} is not the Config of any Part, so it builds nothing.")

    @classmethod
    def display_name(cls) -> str:
        """Returns the short name that messages use."""
        built = cls.builds()
        return built.__name__ if built is not None else cls.__name__

    def build(self) -> T_co:
        """Builds the part from a copy of this config, once every field of its own is set."""
        self._require_all()
        return self._build(self.clone())

    def _build(self, config: Self) -> T_co:
        built: Any = type(self).builds()
        return built(config)

    def _require_all(self) -> None:
        missing = [name for name in self.fields() if self.__dict__[name] is REQUIRED]
        if missing:
            where = ", ".join(self._locate(name) for name in missing)
            raise ConfigError(
                f"{type(self).display_name()}: required and not set: {where}. "
                "Set it in the experiment, or with key.path=value on the command line."
            )

    # Reading and writing fields.

    @classmethod
    def fields(cls) -> dict[str, Field]:
        """Returns the declared fields by name."""
        return cls.__config_fields__

    def set(self, **values: Any) -> Self:
        """Sets several fields and returns the config itself."""
        origin = here()
        for name, value in values.items():
            self.set_value(name, value, origin)
        return self

    def clone(self, **values: Any) -> Self:
        """Returns a deep copy, with some fields set anew."""
        copy = type(self).__new__(type(self))
        _slot(copy, "_explicit", dict(self._explicit))
        _slot(copy, "_parent", None)
        _slot(copy, "_key", "")
        for name in self.fields():
            copy.__dict__[name] = _adopt(copy, name, self.__dict__[name])
        return copy.set(**values) if values else copy

    def set_value(self, name: str, value: Any, origin: Origin) -> None:
        """Sets one field by value, checked, remembering where the value came from."""
        if name not in self.fields():
            raise self._unknown(name)
        checked = check(value, field_hints(type(self))[name], self._locate(name))
        self.__dict__[name] = _adopt(self, name, checked)
        self._explicit[name] = origin

    def is_set(self, name: str) -> bool:
        """Says whether a field was set explicitly: itself, or something inside the configs it holds."""
        if name in self._explicit:
            return True
        value = self.__dict__[name]
        holds_configs = any(True for _ in configs_inside(value))
        return holds_configs and not same(value, self.fields()[name].default)

    def explicit(self) -> dict[str, Any]:
        """Returns the fields that were set explicitly, with their values."""
        return {name: self.__dict__[name] for name in self.fields() if self.is_set(name)}

    def get_origin(self, name: str) -> Origin | None:
        """Returns where a field's value was set, or None for a default."""
        return self._explicit.get(name)

    def tree_path(self) -> str:
        """Returns the path from the root of the tree to this config ('' for the root)."""
        parent = self._parent() if self._parent is not None else None
        above = parent.tree_path() if parent is not None else ""
        return f"{above}.{self._key}" if above else self._key

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets a field; an unknown name is an error that names the nearest one."""
        self.set_value(name, value, here())

    def __delattr__(self, name: str) -> None:
        """Refuses: a field has always a value."""
        raise ConfigError(f"{self._locate(name)}: a config field cannot be deleted; set it instead.")

    def __getattr__(self, name: str) -> Any:
        """Reports an unknown field (known ones never come here)."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise _UnknownAttribute(str(self._unknown(name)))

    def __eq__(self, other: object) -> bool:
        """Compares class and values; where the values came from does not count."""
        if type(self) is not type(other):
            return NotImplemented
        return all(self.__dict__[name] == other.__dict__[name] for name in self.fields())

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value

    def __repr__(self) -> str:
        """Shows what differs from the defaults."""
        inner = ", ".join(
            f"{name}={self.__dict__[name]!r}"
            for name, field in self.fields().items()
            if not same(self.__dict__[name], field.default)
        )
        return f"{type(self).__qualname__}({inner})"

    def _locate(self, name: str) -> str:
        path = self.tree_path()
        return f"{path}.{name}" if path else name

    def _unknown(self, name: str) -> ConfigError:
        return ConfigError(
            f"{self._locate(name)}: {type(self).display_name()} has no field {name!r}. "
            + did_you_mean(name, self.fields())
        )


# A child field is typed by interface: `ConfigOf[TokenMap]` is any config that builds a TokenMap.
ConfigOf = Config


class _UnknownAttribute(ConfigError, AttributeError):
    """An unknown field was read; also an AttributeError, so that hasattr() answers."""


def same(left: Any, right: Any) -> bool:
    """Compares two field values: REQUIRED by identity, numbers also by type, the rest by value."""
    if left is right:
        return True
    if left is REQUIRED or right is REQUIRED or type(left) is not type(right):
        return False
    return bool(left == right)


def configs_inside(value: Any, key: str = "") -> Iterator[tuple[str, Config[Any]]]:
    """Yields the configs that a field's value holds, with their keys, through lists and dicts."""
    if isinstance(value, Config):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from configs_inside(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from configs_inside(item, f"{key}.{index}" if key else str(index))


def _adopt(parent: Config[Any], key: str, value: Any) -> Any:
    """Copies a value into a tree, so that no two places ever share a config or a container."""
    if isinstance(value, Config):
        copy = value.clone()
        _slot(copy, "_parent", weakref.ref(parent))
        _slot(copy, "_key", key)
        return copy
    if isinstance(value, dict):
        return {name: _adopt(parent, f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, list):
        return [_adopt(parent, f"{key}.{index}", item) for index, item in enumerate(value)]
    if type(value) is tuple:
        return tuple(_adopt(parent, f"{key}.{index}", item) for index, item in enumerate(value))
    return value


def _slot(config: Config[Any], name: str, value: Any) -> None:
    object.__setattr__(config, name, value)
