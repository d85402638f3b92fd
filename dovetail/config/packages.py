"""Packages outside of Dovetail: those that a user names, and installed ones that ask for it.

An error that such a package raises is reported with its file and line, so that the user can fix it.

An installed package asks to be imported by an entry point of the group `dovetail`:

    [project.entry-points.dovetail]
    mypackage = "mypackage"
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from dovetail.config.base import Component, Config
from dovetail.config.errors import ConfigError
from dovetail.config.registry import (
    component_name,
    import_submodules,
    imported_packages,
    register_package,
    script_module,
)
from dovetail.config.traverse import visit

ENTRY_POINTS = "dovetail"
_OWN = __name__.partition(".")[0]

_MISTAKES = (TypeError, ValueError, AttributeError, LookupError, NameError, NotImplementedError)
_WRONG_PATH = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_DEVICE_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")


def import_packages(names: Iterable[str] = ()) -> list[str]:
    """Imports the installed packages that ask for it, and the named ones.

    A named one may be in the working folder. Returns the modules of the first kind.
    """
    found = {_import_entry_point(point) for point in metadata.entry_points(group=ENTRY_POINTS)}
    names = list(names)
    if names and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in names:
        import_package(name)
    return sorted(found)


def import_package(name: str) -> None:
    """Imports a user's package (`--import`), so that text may name its components and functions.

    All files of a package are imported, so that its `__init__.py` may be empty.
    """
    if not all(piece.isidentifier() for piece in name.split(".")):
        stem = Path(name).stem
        raise ConfigError(
            f"--import {name}: expected the name of a module, such as mypackage.layers, got a path "
            f"or another text. For a file, start in its folder and pass {stem}."
        )
    if name == script_module():  # a second import would define its classes again
        return
    try:
        if hasattr(importlib.import_module(name), "__path__"):
            import_submodules(name)
    except ModuleNotFoundError as error:
        if error.name is None or f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"--import {name}: {error}. Is it installed, or in the folder you start from?"
            ) from error
        raise ConfigError(f"--import {name}: {_failed_line(error)}.") from error
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise ConfigError(f"--import {name}: {_failed_line(error)}.") from error
    register_package(name)


def missing_imports(names: Iterable[str]) -> list[str]:
    """Returns those of the named modules that nobody has imported in this process."""
    there = imported_packages() | {script_module()}

    def is_there(name: str) -> bool:
        return name in sys.modules or any(f"{name}.".startswith(f"{each}.") for each in there)

    return [name for name in names if not is_there(name)]


def own_modules(config: Config[Any]) -> list[str]:
    """Returns the modules outside of Dovetail that must be imported to read the config's text."""
    installed = {point.module for point in metadata.entry_points(group=ENTRY_POINTS)}
    found = set()
    for _, each in visit(config):
        component = each.builds()
        if isinstance(component, type) and issubclass(component, Component):
            module = component_name(component).partition(":")[0]
            if module.partition(".")[0] not in (_OWN, "__main__"):
                found.add(module)
    return sorted(m for m in found if not any(f"{m}.".startswith(f"{p}.") for p in installed))


def missing_entry_points(modules: Iterable[str]) -> list[str]:
    """Returns those modules that no installed package provides as an entry point."""
    provided = {point.module for point in metadata.entry_points(group=ENTRY_POINTS)}
    return [name for name in modules if name not in provided]


def failed_user_line(error: Exception) -> str | None:
    """Returns the file, line and message of an error in a user's package, else None.

    If Dovetail's code raised it, the line is that of the call, for exceptions that wrong arguments
    cause. Errors of files and devices are not the caller's.
    """
    roots = {name.partition(".")[0] for name in imported_packages()}
    in_own = False
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        root = str(frame.f_globals.get("__name__")).partition(".")[0]
        if root in roots:
            is_mistake = not in_own or isinstance(error, _MISTAKES)
            is_device = type(error).__name__ in _DEVICE_ERRORS
            where = f"{frame.f_code.co_filename}:{line}"
            return f"{where}: {_message(error)}" if is_mistake and not is_device else None
        in_own = in_own or root == _OWN
    return None


def may_pass(error: Exception) -> bool:
    """Says whether the same call may succeed later, as after an error of a disk or a network."""
    is_of_the_system = isinstance(error, OSError) and error.errno is not None
    return is_of_the_system and not isinstance(error, _WRONG_PATH)


def _import_entry_point(point: metadata.EntryPoint) -> str:
    try:
        import_package(point.module)
    except ConfigError as error:
        package = point.dist.name if point.dist is not None else "an installed package"
        raise ConfigError(
            f"{package} asks for its module {point.module} to be imported (entry point "
            f"{point.name!r} of group {ENTRY_POINTS!r}), which fails: {error.__cause__}. Repair or "
            "uninstall it."
        ) from error
    return point.module


def _failed_line(error: BaseException) -> str:
    """Returns the file, line and message of an error in a user's module."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    frame = [each for each in frames if not each.filename.startswith("<frozen importlib")][-1]
    return f"{frame.filename}:{frame.lineno}: {_message(error)}"


def _message(error: BaseException) -> str:
    text = str(error).rstrip(".")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
