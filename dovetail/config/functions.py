"""Configs of third-party functions and classes: their parameters become fields."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from dovetail.config.base import Config, ConfigMeta
from dovetail.config.errors import ConfigError
from dovetail.config.fields import Field
from dovetail.config.registry import find_function, function_name

T = TypeVar("T")

_SIMPLE = (bool, int, float, str, type(None))
_classes: dict[str, type[FunctionConfig]] = {}


class FunctionConfig(Config[Any]):
    """The config of a call: `build()` calls the function with the fields as arguments."""

    _function: ClassVar[Callable[..., Any]]
    _public_name: ClassVar[str]
    _result: ClassVar[type | None] = None

    @classmethod
    def builds(cls) -> type | None:
        """Returns the class of the result, where the function says it."""
        return cls._result

    @classmethod
    def display_name(cls) -> str:
        """Returns the public name of the function."""
        return cls._public_name

    @classmethod
    def public_name(cls) -> str:
        """Returns the public name of the function."""
        return cls._public_name

    def _build(self, config: Any) -> Any:
        # Child configs are built first: a third-party function knows nothing of configs.
        arguments = {name: _built(config.__dict__[name]) for name in config.fields()}
        return type(self)._function(**arguments)


def config_for(function: Callable[..., T], /, **values: Any) -> Config[T]:
    """Returns the config of a call to `function`, with some of its arguments set."""
    return config_class_for(function_name(function))(**values)


def config_class_for(name: str, where: str = "config") -> type[FunctionConfig]:
    """Returns the config class of a listed function, made once."""
    if name not in _classes:
        _classes[name] = _make_class(find_function(name, where), name)
    return _classes[name]


def _make_class(function: Any, name: str) -> type[FunctionConfig]:
    hints = _hints(function)
    fields: dict[str, Field] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"{name}: the argument {parameter.name!r} cannot be given by name.")
        has_default = parameter.default is not parameter.empty
        field = Field(parameter.name, parameter.default) if has_default else Field(parameter.name)
        fields[parameter.name] = field
    made: Any = ConfigMeta(name.rpartition(":")[2], (FunctionConfig,), {"__module__": __name__})
    # Methods of Config win over parameters of the same name only as attributes; `__dict__` keeps both.
    made.__config_fields__ = fields
    made.__config_hints__ = {key: _simple(hints.get(key, Any)) for key in fields}
    made._function = staticmethod(function)
    made._public_name = name
    result = function if isinstance(function, type) else hints.get("return")
    made._result = result if isinstance(result, type) else None
    return made


def _hints(function: Any) -> dict[str, Any]:
    target: Any = vars(function).get("__init__", function) if isinstance(function, type) else function
    try:
        return get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}  # third-party hints may not resolve; the call itself still checks


def _simple(hint: Any) -> Any:
    """Keeps a hint that is made of plain types; anything more exotic is left to the function."""
    if hint in _SIMPLE:
        return hint
    if get_origin(hint) in (Union, types.UnionType) and all(a in _SIMPLE for a in get_args(hint)):
        return hint
    return Any


def _built(value: Any) -> Any:
    if isinstance(value, Config):
        return value.build()
    if isinstance(value, list | tuple):
        return type(value)(_built(item) for item in value)
    if isinstance(value, dict):
        return {key: _built(item) for key, item in value.items()}
    return value
