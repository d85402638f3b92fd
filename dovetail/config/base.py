"""Config: a typed, by-value description of a part, from which the part is built.

A config class is declared like a dataclass. Its instances form a tree: assignment copies, so every
config has at most one parent, and an error can always say the whole path.
"""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar, dataclass_transform

from dovetail.config.errors import ConfigError, did_you_mean
from dovetail.config.fields import Field, collect_fields, field_defaults, field_hints
from dovetail.config.node import HasNode, Node
from dovetail.config.provenance import Origin, here
from dovetail.config.required import REQUIRED
from dovetail.config.typecheck import check
from dovetail.config.values import (
    CONTAINERS,
    SCALARS,
    configs_inside,
    copied,
    items_of,
    join,
    refuse_foreign,
    same,
    settled,
)

T_co = TypeVar("T_co", covariant=True)


# `wraps` is no field specifier on purpose: to a type checker it is a default like any other, so
# that a wrapper's config can be written without the field that replace() fills.
@dataclass_transform(kw_only_default=True)
class ConfigMeta(type):
    """Turns the annotations of a config class into fields."""

    __config_fields__: dict[str, Field]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any
    ) -> ConfigMeta:
        """Creates the class with its own and inherited fields."""
        parents = [base for base in bases if isinstance(base, ConfigMeta)]
        fields = collect_fields(namespace.get("__qualname__", name), parents, namespace)
        namespace["__config_fields__"] = fields
        return super().__new__(mcs, name, bases, namespace, **kwargs)


class Config(HasNode, Generic[T_co], metaclass=ConfigMeta):
    """The description of a part of type T: fields, some of them the configs of its children."""

    def __init__(self, /, **values: Any) -> None:
        """Sets the given fields; the others start as copies of their defaults."""
        object.__setattr__(self, "_node", Node())
        for name, default in field_defaults(type(self)).items():
            self._node.values[name] = copied(self, name, default)
        if values:
            self._set_all(values, here())

    # What a config builds.

    @classmethod
    def builds(cls) -> type | None:
        """Returns the class of what `build()` returns, or None where that is unknown."""
        raise ConfigError(
            f"{cls.__qualname__} is not the Config of any Part, so it builds nothing. "
            "Nest it in the class that it describes."
        )

    @classmethod
    def display_name(cls) -> str:
        """Returns the short name that messages use."""
        return cls.__qualname__.removesuffix(".Config").rpartition(".")[2]

    def build(self, /, **values: Any) -> T_co:
        """Builds the part from a copy of this config, with some fields set anew.

        Every field of its own must be set by then.
        """
        config = self.clone(**values)
        config._require_all()
        return config._build()

    def _build(self) -> T_co:
        built: Any = type(self).builds()
        return built(self)

    def _require_all(self) -> None:
        missing = [
            path
            for name, value in self._node.values.items()
            for path in _required_inside(value, self.locate(name))
        ]
        if missing:
            raise ConfigError(
                f"{type(self).display_name()} cannot be built. Required and not set: "
                f"{', '.join(missing)}. Set each in the experiment, or with key.path=value on the "
                "command line."
            )

    # Reading and writing fields.

    @classmethod
    def fields(cls) -> dict[str, Field]:
        """Returns the declared fields by name."""
        return cls.__config_fields__

    def set(self, /, **values: Any) -> Self:
        """Sets several fields and returns the config itself."""
        self._set_all(values, here())
        return self

    def clone(self, /, **values: Any) -> Self:
        """Returns a deep copy, with some fields set anew."""
        self._settle()
        copy = self._copy(None, "")
        copy._node.place = self._node.location()
        if values:
            copy._set_all(values, here())
        return copy

    def set_value(self, name: str, value: Any, origin: Origin) -> None:
        """Sets one field by value, checked, remembering where the value came from."""
        if name not in self.fields():
            raise self._unknown(name)
        checked = self._check(name, value)
        for _, config in configs_inside(checked):
            config._settle()
        self._node.values[name] = copied(self, name, checked)
        self._node.explicit[name] = origin

    def is_set(self, name: str) -> bool:
        """Says whether a field was set explicitly: itself, or something inside what it holds."""
        if name in self._node.explicit:
            return True
        value, default = self._node.values[name], field_defaults(type(self))[name]
        return not same(value, default) or _explicit_inside(value) != _explicit_inside(default)

    def explicit(self) -> dict[str, Any]:
        """Returns the fields that were set explicitly, with their values."""
        return {name: self._node.values[name] for name in self.fields() if self.is_set(name)}

    def get_origin(self, name: str) -> Origin | None:
        """Returns where a field's value was set, or None for a default."""
        return self._node.explicit.get(name)

    def tree_path(self) -> str:
        """Returns the path from the root of the tree to this config ('' for the root)."""
        return self._node.path()

    def locate(self, name: str = "") -> str:
        """Returns the path of a field, for a message; a copy keeps the path it came from."""
        return join(self._node.location(), name)

    # Python's own protocols.

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets a field; an unknown name is an error that names the nearest one."""
        if name in self.fields() and hasattr(type(self), name):
            raise ConfigError(
                f"{self.locate(name)}: {name!r} is also a method of every config. "
                f"Set this field with .set({name}=...)."
            )
        self.set_value(name, value, here())

    def __delattr__(self, name: str) -> None:
        """Refuses: a field always has a value."""
        raise ConfigError(f"{self.locate(name)}: a config field cannot be deleted; set it instead.")

    def __getattr__(self, name: str) -> Any:
        """Returns a field's value; an unknown name is an error that names the nearest one."""
        if name == "_node":  # only before __init__
            raise AttributeError(name)
        if name in self._node.values:
            return self._node.values[name]
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__qualname__} has no attribute {name!r}")
        raise _UnknownAttribute(str(self._unknown(name)))

    def __dir__(self) -> list[str]:
        """Lists the fields too, for completion."""
        return sorted({*super().__dir__(), *self.fields()})

    def __eq__(self, other: object) -> bool:
        """Compares class and values; where the values came from does not count."""
        if not isinstance(other, Config) or type(self) is not type(other):
            return NotImplemented
        return same(self._node.values, other._node.values)

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value

    def __copy__(self) -> Self:
        """Copies by value: there are no shallow copies of a config."""
        return self.clone()

    def __deepcopy__(self, memo: object) -> Self:
        """Copies by value."""
        return self.clone()

    def __reduce__(self) -> Any:
        """Pickles the class by its name, the values, and where they were set."""
        self._settle()
        return _restored, (type(self), self._node.values, self._node.explicit)

    def __repr__(self) -> str:
        """Shows what differs from the defaults."""
        defaults = field_defaults(type(self))
        inner = ", ".join(
            f"{name}={value!r}"
            for name, value in self._node.values.items()
            if not same(value, defaults[name])
        )
        return f"{type(self).__qualname__}({inner})"

    # Inside.

    def _set_all(self, values: dict[str, Any], origin: Origin) -> None:
        for name, value in values.items():
            self.set_value(name, value, origin)

    def _check(self, name: str, value: Any) -> Any:
        where = self.locate(name)
        checked = check(value, field_hints(type(self))[name], where)
        refuse_foreign(checked, where)
        return checked

    def _copy(self, parent: Any, key: str) -> Self:
        copy = object.__new__(type(self))
        values = self._node.values.copy()
        object.__setattr__(copy, "_node", Node(values, self._node.explicit.copy(), parent, key))
        for name, value in values.items():
            if type(value) not in SCALARS:
                values[name] = copied(copy, name, value)
        return copy

    def _settle(self) -> None:
        """Checks lists and dicts, which can be changed in place, and takes in what is new there."""
        for name, value in self._node.values.items():
            if type(value) in SCALARS:
                continue
            if isinstance(value, Config):
                value._settle()
            elif type(value) in CONTAINERS:
                seen = {id(one) for one in self._node.values.values() if isinstance(one, Config)}
                is_default = same(value, field_defaults(type(self))[name])
                checked = value if is_default else self._check(name, value)
                self._node.values[name] = settled(self, name, value, checked, seen)
                for _, config in configs_inside(self._node.values[name]):
                    config._settle()

    def _unknown(self, name: str) -> ConfigError:
        return ConfigError(
            f"{self.locate(name)}: {type(self).display_name()} has no field {name!r}. "
            + did_you_mean(name, self.fields())
        )


# A child field is typed by interface: `ConfigOf[TokenMap]` is any config that builds a TokenMap.
ConfigOf = Config


class _UnknownAttribute(ConfigError, AttributeError):
    """An unknown field was read; also an AttributeError, so that hasattr() answers."""


def field_values(config: Config[Any]) -> dict[str, Any]:
    """Returns the values of all fields by name, also of those that are named like a method."""
    return dict(config._node.values)


def _explicit_inside(value: Any) -> list[Any]:
    """Lists what was set explicitly on the configs inside a value, and where."""
    return [
        (key, config._node.explicit, [_explicit_inside(v) for v in config._node.values.values()])
        for key, config in configs_inside(value)
    ]


def _required_inside(value: Any, path: str) -> list[str]:
    if value is REQUIRED:
        return [path]
    return [at for key, item in items_of(value) for at in _required_inside(item, f"{path}.{key}")]


def _restored(
    config_class: type[Config[Any]], values: dict[str, Any], explicit: dict[str, Origin]
) -> Config[Any]:
    """Makes a config again from its pickled state."""
    config = config_class()
    for name, value in values.items():
        config._node.values[name] = copied(config, name, value)
    config._node.explicit.update(explicit)
    return config
