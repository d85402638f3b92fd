"""The names that config text may use: parts that are defined, and functions that are listed.

Reading text looks names up here and nowhere else. It never imports, so a text can name only what
the program, or the person who typed `--import`, had already chosen to know.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar, overload

from dovetail.config.errors import ConfigError, did_you_mean, nearest

F = TypeVar("F")

_parts: dict[str, type] = {}
_functions: dict[str, Any] = {}
_function_names: dict[int, str] = {}
_packages: set[str] = (
    set()
)  # those whose own functions may be named, because the user imported them


def register_part(part: type) -> None:
    """Makes a part known by `module:Name`. Called for every class that extends Part."""
    if "<locals>" not in part.__qualname__:
        _parts[f"{part.__module__}:{part.__qualname__}"] = part


@overload
def register_function(name: str) -> Any: ...
@overload
def register_function(name: F) -> F: ...
def register_function(name: Any) -> Any:
    """Lists a function or class, so that config text may name it.

    Args:
        name: the public name people import it by, such as `optax:adamw`; or, as a decorator, the
            function itself, which is listed by the name it has in its own module.
    """
    if not isinstance(name, str):
        _remember(_own_name(name), name)  # a decorator runs before the module holds the function
        return name
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute or _is_private(module_name) or _is_private(attribute):
        raise ConfigError(
            f"{name!r}: expected a public name 'module:function', such as 'jax.nn:silu'."
        )
    try:
        found: Any = importlib.import_module(module_name)
        for piece in attribute.split("."):
            found = getattr(found, piece)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name!r} cannot be registered: {error}.") from error
    if not callable(found):
        raise ConfigError(
            f"{name!r} cannot be registered: it is {found!r}, which cannot be called."
        )
    _remember(name, found)
    return found


def import_package(name: str) -> None:
    """Imports a user's package (`--import`); its parts and its own functions may then be named."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"--import {name}: {error}. Is it installed, or in the folder you start from?"
        ) from error
    _packages.add(name)


def imported_packages() -> list[str]:
    """Returns the packages that were named with `--import`, sorted."""
    return sorted(_packages)


def part_name(part: type) -> str:
    """Returns the name by which text refers to a part."""
    name = f"{part.__module__}:{part.__qualname__}"
    if "<locals>" in name:
        raise ConfigError(
            f"{name} cannot be written as text, because it is defined inside a function. "
            "Define it at the top level of a module."
        )
    if _parts.get(name) is not part:
        raise ConfigError(f"{name} cannot be written as text: that name now means another class.")
    return name


def function_name(function: Any) -> str:
    """Returns the public name of a function, checked to resolve to the same object."""
    known = _function_names.get(id(function))
    if known is not None and _functions[known] is function:
        return known
    name = _own_name(function)
    if _resolve_loaded(*name.split(":")) is not function:
        raise ConfigError(
            f"{name} is another object than the one in this config; give it its own name."
        )
    _remember(name, function)
    return name


def find_part(name: str, where: str, choices: Callable[[], list[str]] | None = None) -> type:
    """Returns a registered part by its full name, or by its class name where that is unique.

    Args:
        name: the name.
        where: what a message begins with.
        choices: returns the names that fit there, to advise from where the name is unknown.
    """
    found = _parts.get(name) or _unique(name, _parts, where)
    if found is None:
        raise unknown_name(name, where, choices() if choices is not None else None)
    return found


def known_parts(fits: Callable[[type], bool]) -> list[str]:
    """Returns the names of the public parts that fit, each as short as it may be written."""
    fitting = [full for full, part in _parts.items() if fits(part) and not _is_private(_last(full))]
    shorts = [_last(full) for full in _parts]
    return [_last(full) if shorts.count(_last(full)) == 1 else full for full in fitting]


def find_function(name: str, where: str, by_short_name: bool = False) -> Any:
    """Returns a listed function by its public name, or by its last piece where that is unique."""
    found = _functions.get(name)
    if found is None:
        found = _from_packages(name)
    if found is None and by_short_name:
        found = _unique(name, _functions, where)
    if found is None:
        raise unknown_name(name, where)
    return found


def listed_functions() -> list[str]:
    """Returns the public names of all functions that text may name."""
    return list(_functions)


def is_known_function(name: str) -> bool:
    """Says whether a name is a listed function."""
    return name in _functions or _from_packages(name) is not None


def unknown_name(name: str, where: str, choices: list[str] | None = None) -> ConfigError:
    """Returns the error for a name that no one registered, with the nearest of the choices."""
    close = _alike(name, [*_parts, *_functions] if choices is None else choices)
    if close:
        advice = f"Did you mean {' or '.join(repr(full) for full in close)}?"
    else:  # of all that there is, a list would help nobody
        advice = did_you_mean(name, choices) if choices is not None else ""
    return ConfigError(
        f"{where}: {name!r} is neither a registered part nor a listed function, and reading a "
        f"config never imports code. {advice}".rstrip()
        + " If it is in your own package, name the package with --import; "
        "a third party's function is listed with register_function."
    )


def _alike(name: str, known: list[str]) -> list[str]:
    """Returns the names whose last piece looks most like that of `name`."""
    by_short_name: dict[str, list[str]] = {}
    for full in known:
        by_short_name.setdefault(full.rpartition(":")[2], []).append(full)
    alike = nearest(name.rpartition(":")[2], by_short_name)
    close = [full for short in alike for full in by_short_name[short]]
    return nearest(name, close) or close[:3]  # among namesakes, the one in the nearest module


def _own_name(function: Any) -> str:
    """Returns the name that a function says it has, where that is one that text can use."""
    module, qualname = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not module or not qualname or "<" in qualname:
        raise ConfigError(
            f"{function!r} has no name that text could refer to (it is a lambda, a closure, a "
            "partial or an object). Define it with `def` at the top level of a module; to fix "
            "arguments, use config_for(function, argument=value)."
        )
    if module != "__main__" and (_is_private(module) or _is_private(qualname)):
        raise ConfigError(
            f"{module}:{qualname} is a private name. List it by the public name people import it "
            f'by: register_function("{module.split(".")[0]}:{qualname.lstrip("_")}").'
        )
    return f"{module}:{qualname}"


def _unique(short_name: str, known: dict[str, Any], where: str) -> Any:
    found = [full for full in known if _last(full) == short_name]
    if len({id(known[full]) for full in found}) > 1:
        raise ConfigError(
            f"{where}: {short_name!r} is ambiguous. Write one of {', '.join(sorted(found))}."
        )
    return known[found[0]] if found else None


def _last(full_name: str) -> str:
    return full_name.rpartition(":")[2].rpartition(".")[2]


def _from_packages(name: str) -> Any:
    """Finds a function that an imported package itself defines; what it imports stays unknown."""
    module, _, qualname = name.partition(":")
    if name in _parts:  # a part is known by its config, not as a class to call
        return None
    if not any(module == package or module.startswith(f"{package}.") for package in _packages):
        return None
    if _is_private(module) or _is_private(qualname):
        return None
    found = _resolve_loaded(module, qualname)
    is_own = getattr(found, "__module__", None) == module
    if not is_own or not callable(found) or getattr(found, "__qualname__", "") != qualname:
        return None
    _remember(name, found)
    return found


def _is_private(name: str) -> bool:
    return any(piece.startswith("_") for piece in name.split("."))


def _remember(name: str, function: Any) -> None:
    _functions[name] = function
    # A first public name stays: the same function may be listed under a second one.
    if _functions.get(_function_names.get(id(function), "")) is not function:
        _function_names[id(function)] = name


def _resolve_loaded(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for piece in qualname.split("."):
        found = getattr(found, piece, None)
    return found
