"""The names that config text may use: parts that are defined, and functions that are listed.

Reading text looks names up here and nowhere else. It never imports, so a text can name only what the
program had already chosen to know.
"""

from __future__ import annotations

import importlib
from typing import Any

from dovetail.config.errors import ConfigError, did_you_mean

_parts: dict[str, type] = {}
_functions: dict[str, Any] = {}
_function_names: dict[int, str] = {}


def register_part(part: type) -> None:
    """Makes a part known by `module:Name`. Called for every class that extends Part."""
    if "<locals>" not in part.__qualname__:
        _parts[f"{part.__module__}:{part.__qualname__}"] = part


def register_function(name: str) -> Any:
    """Lists a public function or class by the name people import it by, such as `optax:adamw`."""
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(f"{name!r}: expected a public name 'module:function', such as 'jax.nn:silu'.")
    try:
        found: Any = importlib.import_module(module_name)
        for piece in attribute.split("."):
            found = getattr(found, piece)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name!r} cannot be registered: {error}.") from error
    _remember(name, found)
    return found


def part_name(part: type) -> str:
    """Returns the name by which text refers to a part."""
    name = f"{part.__module__}:{part.__qualname__}"
    if _parts.get(name) is not part:
        raise ConfigError(
            f"{name} cannot be written as text, because it is defined inside a function. "
            "Define it at the top level of a module."
        )
    return name


def function_name(function: Any) -> str:
    """Returns the public name of a function, checked to resolve to the same object."""
    known = _function_names.get(id(function))
    if known is not None and _functions[known] is function:
        return known
    module, qualname = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not module or not qualname or "<" in qualname:
        raise ConfigError(
            f"{function!r} has no name that text could refer to (a lambda, a closure or a partial). "
            "Define it with `def` at the top level of a module and use that."
        )
    if any(piece.startswith("_") for piece in module.split(".")) and module != "__main__":
        raise ConfigError(
            f"{qualname} lives in the private module {module}. List it by its public name first: "
            f'register_function("{module.split(".")[0]}:{qualname}").'
        )
    name = f"{module}:{qualname}"
    if _resolve_loaded(module, qualname) is not function:
        raise ConfigError(f"{name} is another object than the one in this config; give it its own name.")
    _remember(name, function)
    return name


def find_part(name: str, where: str) -> type:
    """Returns a registered part by its full name, or by its class name where that is unique."""
    if name in _parts:
        return _parts[name]
    short = [full for full in _parts if full.rpartition(":")[2] == name]
    if len(short) == 1:
        return _parts[short[0]]
    if short:
        raise ConfigError(f"{where}: {name!r} is ambiguous: {', '.join(sorted(short))}.")
    raise unknown_name(name, where)


def find_function(name: str, where: str) -> Any:
    """Returns a listed function by its public name."""
    if name not in _functions:
        raise unknown_name(name, where)
    return _functions[name]


def is_known_function(name: str) -> bool:
    """Says whether a name is a listed function."""
    return name in _functions


def unknown_name(name: str, where: str) -> ConfigError:
    """Returns the error for a name that no one registered."""
    return ConfigError(
        f"{where}: {name!r} is neither a registered part nor a listed function, and reading a config "
        f"never imports code. {did_you_mean(name, [*_parts, *_functions])} "
        "If it is in your own package, name the package with --import."
    )


def _remember(name: str, function: Any) -> None:
    _functions[name] = function
    # A first public name stays: the same function may be listed under a second one.
    _function_names.setdefault(id(function), name)


def _resolve_loaded(module: str, qualname: str) -> Any:
    found: Any = importlib.import_module(module)
    for piece in qualname.split("."):
        found = getattr(found, piece, None)
    return found
