"""Component and Config: a class, and the typed, by-value description from which it is built.

A component is a class with a nested Config, which is declared like a dataclass. Configs form a
tree: assignment copies, so a config has at most one parent, and errors can give the full path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar, dataclass_transform

from dovetail.config.errors import ConfigError, did_you_mean
from dovetail.config.fields import Field, collect_fields, field_defaults, field_hints
from dovetail.config.old_names import OLD_FIELDS, OLD_KEYS
from dovetail.config.provenance import Origin, caller
from dovetail.config.registry import register_component
from dovetail.config.typecheck import check
from dovetail.config.values import (
    CONTAINERS,
    REQUIRED,
    SCALARS,
    check_storable,
    configs_inside,
    copy_into,
    items_of,
    join,
    normalized,
    same,
)

T_co = TypeVar("T_co", covariant=True)


# `wraps` is deliberately not a field specifier: to a type checker it is an ordinary default, so
# that a wrapper's config can be constructed without the field that replace() fills.
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


@dataclass(slots=True)
class ConfigNode:
    """The state of a config, in one attribute, so that it cannot clash with a field name."""

    values: dict[str, Any] = field(default_factory=dict)
    explicit: dict[str, Origin] = field(default_factory=dict)
    parent: Any = None  # the config that holds this one
    key: str = ""  # the path in the parent: the field's name, and keys inside its value
    copied_from: str = ""  # the path of the original, for a copy without a parent

    def path(self) -> str:
        """Returns the path from the root of the tree."""
        return join(*self._pieces()[1:])

    def location(self) -> str:
        """Returns the path for messages: a copy of a child has the child's path."""
        return join(*self._pieces())

    def _pieces(self) -> list[str]:
        pieces: list[str] = []
        node = self
        while node.parent is not None:
            pieces.append(node.key)
            node = node.parent._node
        return [node.copied_from, *reversed(pieces)]


class HasNode:
    """Declares the node on a plain class, so that type checkers do not treat it as a field."""

    _node: ConfigNode


class Config(HasNode, Generic[T_co], metaclass=ConfigMeta):
    """The description of a component of type T. Some fields hold the configs of its children."""

    def __init__(self, /, **values: Any) -> None:
        """Sets the given fields; the others start as copies of their defaults."""
        object.__setattr__(self, "_node", ConfigNode())
        for name, default in field_defaults(type(self)).items():
            self._node.values[name] = copy_into(self, name, default)
        if values:
            self._set_all(values, caller())

    # Building.

    @classmethod
    def builds(cls) -> type | None:
        """Returns the class that `build()` returns, or None if it is unknown."""
        raise ConfigError(
            f"{cls.__qualname__} is not the Config of any Component, so it builds nothing. "
            "Nest it in the class that it describes."
        )

    @classmethod
    def display_name(cls) -> str:
        """Returns the short name that messages use."""
        return cls.__qualname__.removesuffix(".Config").rpartition(".")[2]

    def build(self, /, **values: Any) -> T_co:
        """Builds the component from a copy of this config, with the given fields set.

        Raises a ConfigError if a field is still REQUIRED.
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

    @classmethod
    def _renamed_field(cls, name: str) -> str | None:
        """Returns the current name of a field that was renamed, or None."""
        new = next((OLD_FIELDS[o, name] for o in cls._owners() if (o, name) in OLD_FIELDS), None)
        return new if new is None or new in cls.fields() else cls._renamed_field(new)

    @classmethod
    def _renamed_keys(cls, name: str, value: dict[Any, Any]) -> dict[Any, Any]:
        """Returns a field's dict with old keys replaced by their current names."""
        owners = cls._owners()
        new = {key: new for (o, f, key), new in OLD_KEYS.items() if o in owners and f == name}
        return {new.get(key, key): item for key, item in value.items()}

    @classmethod
    def _owners(cls) -> list[str]:
        """Returns the names of the class that this config builds and of its bases."""
        names = [base.__qualname__.removesuffix(".Config") for base in cls.__mro__]
        return [name.rpartition(".")[2] for name in names]

    def set(self, /, **values: Any) -> Self:
        """Sets several fields and returns the config itself."""
        self._set_all(values, caller())
        return self

    def clone(self, /, **values: Any) -> Self:
        """Returns a deep copy, with the given fields set."""
        self._normalize()
        copy = self._copy(None, "")
        copy._node.copied_from = self._node.location()
        if values:
            copy._set_all(values, caller())
        return copy

    def set_value(self, name: str, value: Any, origin: Origin) -> None:
        """Checks a value, copies it into a field, and records its origin."""
        if name not in self.fields():
            raise self._unknown(name)
        checked = self._check(name, value)
        for _, config in configs_inside(checked):
            config._normalize()
        self._node.values[name] = copy_into(self, name, checked)
        self._node.explicit[name] = origin

    def is_set(self, name: str) -> bool:
        """Says whether a field, or anything inside its value, was set explicitly."""
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
        """Returns the path of a field for messages; a copy keeps the path of its original."""
        return join(self._node.location(), name)

    # Python's own protocols.

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets a field; an unknown name is an error that names the nearest one."""
        if name in self.fields() and hasattr(type(self), name):
            raise ConfigError(
                f"{self.locate(name)}: {name!r} is also a method of every config. "
                f"Set this field with .set({name}=...)."
            )
        self.set_value(name, value, caller())

    def __delattr__(self, name: str) -> None:
        """Raises: a field always has a value."""
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
        """Includes the fields, for completion."""
        return sorted({*super().__dir__(), *self.fields()})

    def __eq__(self, other: object) -> bool:
        """Compares class and values, not origins."""
        if not isinstance(other, Config) or type(self) is not type(other):
            return NotImplemented
        return same(self._node.values, other._node.values)

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value

    def __copy__(self) -> Self:
        """Copies by value: there are no shallow copies of a config."""
        return self.clone()

    def __deepcopy__(self, memo: object) -> Self:
        return self.clone()

    def __reduce__(self) -> Any:
        self._normalize()
        return _restored, (type(self), self._node.values, self._node.explicit)

    def __repr__(self) -> str:
        """Shows the fields that differ from their defaults."""
        defaults = field_defaults(type(self))
        inner = ", ".join(
            f"{name}={value!r}"
            for name, value in self._node.values.items()
            if not same(value, defaults[name])
        )
        return f"{type(self).__qualname__}({inner})"

    # Internals.

    def _set_all(self, values: dict[str, Any], origin: Origin) -> None:
        for name, value in values.items():
            self.set_value(name, value, origin)

    def _check(self, name: str, value: Any) -> Any:
        where = self.locate(name)
        checked = check(value, field_hints(type(self))[name], where)
        check_storable(checked, where)
        return checked

    def _copy(self, parent: Any, key: str) -> Self:
        copy = object.__new__(type(self))
        values = self._node.values.copy()
        object.__setattr__(
            copy, "_node", ConfigNode(values, self._node.explicit.copy(), parent, key)
        )
        for name, value in values.items():
            if type(value) not in SCALARS:
                values[name] = copy_into(copy, name, value)
        return copy

    def _normalize(self) -> None:
        """Checks and adopts new items of lists and dicts, which can be changed in place."""
        for name, value in self._node.values.items():
            if type(value) in SCALARS:
                continue
            if isinstance(value, Config):
                value._normalize()
            elif type(value) in CONTAINERS:
                seen = {id(one) for one in self._node.values.values() if isinstance(one, Config)}
                is_default = same(value, field_defaults(type(self))[name])
                checked = value if is_default else self._check(name, value)
                self._node.values[name] = normalized(self, name, value, checked, seen)
                for _, config in configs_inside(self._node.values[name]):
                    config._normalize()

    def _unknown(self, name: str) -> ConfigError:
        new = self._renamed_field(name)
        advice = did_you_mean(name, self.fields()) if new is None else f"It was renamed to {new!r}."
        owner = type(self).display_name()
        return ConfigError(f"{self.locate(name)}: {owner} has no field {name!r}. {advice}")


# Child fields are typed by interface: `ConfigOf[TokenMap]` is any config that builds a TokenMap.
ConfigOf = Config


class Component:
    """The base of every class that is built from a config, and known to config text by its name."""

    class Config(ConfigOf[T_co], Generic[T_co]):
        """The config of a component; subclasses declare fields."""

    def __init__(self, config: Config[Any]) -> None:
        self.config = config

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Gives every component a Config of its own, so that a subclass never builds its base."""
        super().__init_subclass__(**kwargs)
        if "Config" not in cls.__dict__:
            inherited = tuple(
                dict.fromkeys(base.Config for base in cls.__bases__ if issubclass(base, Component))
            )
            name = f"{cls.__qualname__}.Config"
            namespace = {"__module__": cls.__module__, "__qualname__": name}
            cls.Config = ConfigMeta("Config", inherited, namespace)  # type: ignore[misc, assignment]
        _bind(cls)
        register_component(cls)


def _bind(cls: type[Component]) -> None:
    """Binds a component and its Config."""
    for base in cls.__mro__[1:]:
        inherited = base.__dict__.get("Config")
        if inherited is not None and not issubclass(cls.Config, inherited):
            raise ConfigError(
                f"{cls.__qualname__}.Config must extend {base.__qualname__}.Config, "
                f"because {cls.__qualname__} extends {base.__qualname__}."
            )
    if "builds" in cls.Config.__dict__:
        raise ConfigError(
            f"{cls.__qualname__}.Config is already the Config of another component. Declare "
            f"`class Config({cls.Config.__qualname__})`, or leave it out to get a new one."
        )
    type.__setattr__(cls.Config, "builds", classmethod(lambda config_class: cls))


type.__setattr__(Component.Config, "builds", classmethod(lambda config_class: Component))


class _UnknownAttribute(ConfigError, AttributeError):
    """An unknown field was read. Also an AttributeError, so that hasattr() returns False."""


def _explicit_inside(value: Any) -> list[Any]:
    """Lists the explicitly set fields of the configs inside a value, with their origins."""
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
    """Restores a config from its pickled state."""
    config = config_class()
    for name, value in values.items():
        config._node.values[name] = copy_into(config, name, value)
    config._node.explicit.update(explicit)
    return config
