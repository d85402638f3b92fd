"""Configs of third-party functions and classes: their parameters become fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

from dovetail.config.base import Config, ConfigMeta, _restored
from dovetail.config.errors import ConfigError
from dovetail.config.fields import Field
from dovetail.config.registry import find_function, function_name
from dovetail.config.typecheck import check, is_union
from dovetail.config.values import is_config, is_config_class, items_of, rebuild

T = TypeVar("T")

_SIMPLE = (bool, int, float, str, type(None))
_classes: dict[str, type[FunctionConfig]] = {}


class FunctionConfig(Config[Any]):
    """The config of a call: `build()` calls the function with the fields as arguments.

    `*args` and `**kwargs` of the function are fields too, by their own names: a tuple and a dict.
    """

    _function: ClassVar[Callable[..., Any]]
    _public_name: ClassVar[str]
    _parameters: ClassVar[tuple[inspect.Parameter, ...]] = ()
    _result: ClassVar[type | None] = None

    @classmethod
    def builds(cls) -> type | None:
        """Returns the class of the result, if the function annotates it."""
        return cls._result

    @classmethod
    def display_name(cls) -> str:
        """Returns the public name of the function."""
        return cls._public_name

    def _build(self) -> Any:
        # Child configs are built first: a third-party function does not take configs.
        values = {name: _built(value) for name, value in self._node.values.items()}
        positional: list[Any] = []
        by_name: dict[str, Any] = {}
        for parameter in self._parameters:
            value = values[parameter.name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional.extend(value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                by_name.update(value)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                by_name[parameter.name] = value
            else:
                positional.append(value)
        return type(self)._function(*positional, **by_name)

    def __reduce__(self) -> Any:
        """Pickles by the public name, because the class is created at run time."""
        self._normalize()
        return _call_restored, (self._public_name, self._node.values, self._node.explicit)


def config_for(function: Callable[..., T], /, **values: Any) -> Config[T]:
    """Returns the config of a call to `function`, with some of its arguments set."""
    if is_config(function) or is_config_class(getattr(function, "Config", None)):
        raise ConfigError(
            f"config_for is for functions and classes without a Config; "
            f"{getattr(function, '__name__', function)} has one: use it instead."
        )
    made = config_class_for(function_name(function))
    for parameter in made._parameters:
        if parameter.kind is parameter.VAR_KEYWORD and parameter.name not in values:
            known = {name: value for name, value in values.items() if name in made.fields()}
            extra = {name: value for name, value in values.items() if name not in known}
            values = {**known, parameter.name: extra} if extra else known
    return made(**values)


def config_class_for(name: str, where: str = "config") -> type[FunctionConfig]:
    """Returns the config class of a listed function, created once."""
    function = find_function(name, where)
    name = function_name(function)  # its current one
    made = _classes.get(name)
    if made is None or made._function is not function:
        made = _classes[name] = _make_class(function, name)
    return made


def _make_class(function: Any, name: str) -> type[FunctionConfig]:
    try:
        parameters = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} has no signature ({error}), so it can have no config. "
            "Wrap it in a function of your own."
        ) from error
    hints = _hints(function)
    made: Any = ConfigMeta(name.rpartition(":")[2], (FunctionConfig,), {"__module__": __name__})
    # A parameter may be named like a method of Config (`path`). The attribute stays the method; the
    # field is accessible by set(), text, overrides and value_at().
    made.__config_fields__ = {p.name: Field(p.name, _default(p)) for p in parameters}
    made.__config_hints__ = {p.name: _hint(p, hints.get(p.name, Any)) for p in parameters}
    made._function = staticmethod(function)
    made._public_name = name
    made._parameters = parameters
    result = function if isinstance(function, type) else hints.get("return")
    made._result = result if isinstance(result, type) and result is not type(None) else None
    return made


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return ()
    if parameter.kind is parameter.VAR_KEYWORD:
        return {}
    missing = parameter.default is parameter.empty
    return Field("").default if missing else parameter.default


def _hint(parameter: inspect.Parameter, hint: Any) -> Any:
    """Returns a hint of plain types that the default satisfies, else Any."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return tuple[Any, ...]
    if parameter.kind is parameter.VAR_KEYWORD:
        return dict[str, Any]
    if not all(option in _SIMPLE for option in (get_args(hint) if is_union(hint) else (hint,))):
        return Any
    try:
        check(_default(parameter), hint, "")
    except ConfigError:
        return Any  # such as `rate: float = None`
    return hint if hint is str else hint | Config  # a config is built before the call


def _hints(function: Any) -> dict[str, Any]:
    target: Any = (
        vars(function).get("__init__", function) if isinstance(function, type) else function
    )
    try:
        return get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}  # third-party hints may not resolve


def _built(value: Any) -> Any:
    if isinstance(value, Config):
        return value.build()
    items = items_of(value) if type(value) in (list, tuple, dict) else []
    return rebuild(value, [_built(item) for _, item in items]) if items else value


def _call_restored(name: str, values: dict[str, Any], explicit: dict[str, Any]) -> Config[Any]:
    return _restored(config_class_for(name, "unpickling"), values, explicit)
