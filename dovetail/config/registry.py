"""Registries: named objects of one kind, and the names that config text may use.

Reading config text looks names up here and never imports. A text can therefore name only what the
program, or the person who typed `--import`, has already imported.

The package's own components are written as `dovetail.<subpackage>:Name`, so that a class may move
between the files of its subpackage. Other packages' are written as `module:Name`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from dovetail.config.errors import ConfigError, did_you_mean, nearest
from dovetail.config.old_names import OLD_CLASSES, OLD_FUNCTIONS

T = TypeVar("T")

_OWN = __name__.partition(".")[0]


def import_submodules(package: str) -> None:
    """Imports every module of a package, recursively, in the order of names."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        name = f"{package}.{module.name}"
        importlib.import_module(name)
        if module.ispkg:
            import_submodules(name)


class Registry(Generic[T]):
    """Objects of one kind by name, such as experiments. A name has one definition."""

    def __init__(self, kind: str, *packages: str, advice: str = "") -> None:
        """Creates an empty registry.

        Args:
            kind: the word for one object in messages, such as "experiment".
            packages: packages whose submodules register objects; imported at the first lookup.
            advice: appended to the message for an unknown name.
        """
        self._kind, self._packages, self._advice = kind, packages, advice
        self._things: dict[str, T] = {}
        self._sources: dict[str, str] = {}
        self._is_loaded = not packages

    def register(self, name: str, thing: T, source: str) -> T:
        """Registers an object by name, and returns it.

        Args:
            name: the name; it is an error if another source has registered it.
            thing: the object.
            source: the module (or function) that defines it. It may register a name again, as when
                a module is reloaded.
        """
        before = self._sources.setdefault(name, source)
        if before != source:
            raise ConfigError(
                f"The {self._kind} {name!r} is defined in {before} and again in {source}. "
                "Rename one."
            )
        self._things[name] = thing
        return thing

    def find(self, name: str, where: str = "") -> T:
        """Returns an object by name; the error for an unknown name suggests the nearest one."""
        known = self.all()
        if name not in known:
            start = f"{where}: there" if where else "There"
            advice = f"{did_you_mean(name, known)} {self._advice}".rstrip()
            raise ConfigError(f"{start} is no {self._kind} {name!r}. {advice}")
        return known[name]

    def all(self) -> dict[str, T]:
        """Returns all objects by name, sorted."""
        self.load()
        return dict(sorted(self._things.items()))

    def load(self) -> None:
        """Imports the packages, once."""
        if not self._is_loaded:
            for package in self._packages:
                import_submodules(package)
            self._is_loaded = True

    def registered(self) -> Mapping[str, T]:
        """Returns what has been registered so far, in that order, without importing anything."""
        return self._things

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Undoes, at the end of the block, what was registered in it. For tests."""
        before = dict(self._things), dict(self._sources)
        try:
            yield
        finally:
            self._things, self._sources = before


_components: Registry[type] = Registry("component")
_functions: dict[str, Any] = {}
_function_names: dict[int, str] = {}
_packages: set[str] = set()  # imported by the user, so their own functions may be named


def register_component(component: type) -> None:
    """Registers a component by its name in text. Called for every class that extends Component."""
    if "<locals>" not in component.__qualname__:
        name = _text_name(component.__module__, component.__qualname__)
        _components.register(name, component, component.__module__)


@overload
def register_function(name: str) -> Any: ...
@overload
def register_function(name: T) -> T: ...
def register_function(name: Any) -> Any:
    """Lists a function or class, so that config text may name it.

    Args:
        name: the public name people import it by, such as `optax:adamw`; or, as a decorator, the
            function itself, which is listed by the name it has in its own module.
    """
    if not isinstance(name, str):
        _list_function(_own_name(name), name)  # the module does not hold the function yet
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
    _list_function(name, found)
    return found


def register_package(name: str) -> None:
    """Lets config text name the functions of a user's package."""
    _packages.add(name)


def imported_packages() -> frozenset[str]:
    """Returns the packages that `import_package` has imported in this process."""
    return frozenset(_packages)


def script_module() -> str | None:
    """Returns the name by which the script that runs can be imported; None in a notebook.

    Python calls it `__main__`, which is another module in every process.
    """
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = spec.name if spec is not None else Path(file).stem if file else ""
    pieces = name.split(".")
    return name if all(piece.isidentifier() for piece in pieces) and pieces[0] != _OWN else None


def component_name(component: type) -> str:
    """Returns the name by which text refers to a component."""
    full = f"{component.__module__}:{component.__qualname__}"
    if "<locals>" in full:
        raise ConfigError(
            f"{full} cannot be written as text, because it is defined inside a function. "
            "Define it at the top level of a module."
        )
    name = _text_name(component.__module__, component.__qualname__)
    if _components.registered().get(name) is not component:
        raise ConfigError(f"{full} cannot be written as text: that name now means another class.")
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
    return _list_function(name, function)


def find_component(name: str, where: str, choices: Callable[[], list[str]] | None = None) -> type:
    """Returns a component by its full name, an old name, or its class name where that is unique.

    Args:
        name: the name.
        where: the beginning of an error message.
        choices: returns the names that fit here, from which an error suggests the nearest.
    """
    known = _components.registered()
    names = list(_names(name, OLD_CLASSES))
    found = next((known[each] for each in names if each in known), None)
    if found is None and ":" not in name:
        found = _unique(name, known, where)
    elif found is None:  # one that moved to another subpackage
        own = {full: each for full, each in known.items() if full.startswith(f"{_OWN}.")}
        moved = (_unique(_last(each), own, where) for each in names if each.startswith(f"{_OWN}."))
        found = next((each for each in moved if each is not None), None)
    if found is not None:
        return found
    if (new := _new_short_name(name)) is not None:
        raise ConfigError(f"{where}: {name!r} was renamed to {new!r}.")
    raise unknown_name(name, where, choices() if choices is not None else None)


def known_components(fits: Callable[[type], bool]) -> list[str]:
    """Returns the names of the public components that fit, by class name where that is unique."""
    known = _components.registered()
    fitting = [full for full, each in known.items() if fits(each) and not _is_private(_last(full))]
    shorts = [_last(full) for full in known]
    return [_last(full) if shorts.count(_last(full)) == 1 else full for full in fitting]


def find_function(name: str, where: str, by_short_name: bool = False) -> Any:
    """Returns a listed function by its public name, or by its last piece where that is unique."""
    found = _listed(name)
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
    return _listed(name) is not None


def unknown_name(name: str, where: str, choices: list[str] | None = None) -> ConfigError:
    """Returns the error for a name that is not registered, with the nearest of the choices."""
    known = [*_components.registered(), *_functions]
    close = _most_similar(name, known if choices is None else choices)
    if close:
        advice = f"Did you mean {' or '.join(repr(full) for full in close)}?"
    else:  # a list of everything would be too long
        advice = did_you_mean(name, choices) if choices is not None else ""
    return ConfigError(
        f"{where}: {name!r} is neither a registered component nor a listed function, and reading a "
        f"config never imports code. {advice}".rstrip()
        + " If it is in your own package, name the package with --import; "
        "a third party's function is listed with register_function."
    )


def _text_name(module: str, qualname: str) -> str:
    """Returns `dovetail.<subpackage>:Name` for the package's own names, else `module:Name`."""
    if module == "__main__":
        module = script_module() or module
    pieces = module.split(".")
    return f"{'.'.join(pieces[:2]) if pieces[0] == _OWN else module}:{qualname}"


def _names(name: str, old_names: dict[str, str]) -> Iterator[str]:
    """Yields the names that a name in text may mean today, best first."""
    module, colon, short = name.partition(":")
    if not colon or module.split(".")[0] != _OWN:
        yield _text_name(module, short) if colon else name
        return
    current = _text_name(module, short)
    # Names were once written with the full module path: such a name is older than the table.
    if module.count(".") < 2:
        yield current
    renamed = current
    seen = {current}
    while (new := _renamed(renamed, old_names)) is not None and new not in seen:
        yield new
        renamed = new
        seen.add(new)
    yield current


def _renamed(name: str, old_names: dict[str, str]) -> str | None:
    module, _, short = name.partition(":")
    subpackage = module.partition(".")[2]
    new = old_names.get(f"{subpackage}:{short}", old_names.get(short))
    if new is None:
        return None
    return f"{_OWN}.{new}" if ":" in new else f"{module}:{new}"


def _new_short_name(name: str) -> str | None:
    """Returns the new name of a class that is named on the command line by its old name."""
    renamed = [
        new for old, new in OLD_CLASSES.items() if old.rpartition(":")[2] == name.rpartition(":")[2]
    ]
    return " or ".join(new.rpartition(":")[2] for new in renamed) or None


def _most_similar(name: str, known: list[str]) -> list[str]:
    """Returns the names whose last piece looks most like that of `name`."""
    by_short_name: dict[str, list[str]] = {}
    for full in known:
        by_short_name.setdefault(full.rpartition(":")[2], []).append(full)
    similar = nearest(name.rpartition(":")[2], by_short_name)
    close = [full for short in similar for full in by_short_name[short]]
    return nearest(name, close) or close[:3]  # among namesakes, the one in the nearest module


def _own_name(function: Any) -> str:
    """Returns `module:qualname` of a function, if text can refer to it by that."""
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


def _unique(short_name: str, known: Mapping[str, Any], where: str) -> Any:
    found = [full for full in known if _last(full) == short_name]
    if len({id(known[full]) for full in found}) > 1:
        raise ConfigError(
            f"{where}: {short_name!r} is ambiguous. Write one of {', '.join(sorted(found))}."
        )
    return known[found[0]] if found else None


def _last(full_name: str) -> str:
    return full_name.rpartition(":")[2].rpartition(".")[2]


def _listed(name: str) -> Any:
    """Returns the function that a name in text means, or None."""
    for each in _names(name, OLD_FUNCTIONS):
        if each in _functions:
            return _functions[each]
    return _from_packages(name)


def _from_packages(name: str) -> Any:
    """Finds a function that an imported package itself defines, not one that it imports."""
    module, _, qualname = name.partition(":")
    if name in _components.registered():  # named by its config, not as a class to call
        return None
    if not any(module == package or module.startswith(f"{package}.") for package in _packages):
        return None
    if _is_private(module) or _is_private(qualname):
        return None
    found = _resolve_loaded(module, qualname)
    is_own = getattr(found, "__module__", None) == module
    if not is_own or not callable(found) or getattr(found, "__qualname__", "") != qualname:
        return None
    _list_function(name, found)
    return found


def _is_private(name: str) -> bool:
    return any(piece.startswith("_") for piece in name.split("."))


def _list_function(full_name: str, function: Any) -> str:
    """Lists a function under its name in text, and returns the name that it is written by."""
    name = _text_name(*full_name.split(":"))
    before = _functions.get(name)
    is_same = before is None or before is function or before.__module__ == function.__module__
    if name != full_name and not is_same:
        raise ConfigError(
            f"{full_name} cannot be listed: {name} already means another function, of "
            f"{before.__module__}. Rename one."
        )
    _functions[name] = function
    # The first public name stays: the same function may be listed under a second one.
    if _functions.get(_function_names.get(id(function), "")) is not function:
        _function_names[id(function)] = name
    return _function_names[id(function)]


def _resolve_loaded(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get("__main__" if module == script_module() else module)
    for piece in qualname.split("."):
        found = getattr(found, piece, None)
    return found
