"""Packages outside of Dovetail: those that a user names, and installed ones that ask for it.

An installed package asks to be imported by an entry point of the group `dovetail`:

    [project.entry-points.dovetail]
    mypackage = "mypackage"
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from dovetail.config.base import Component, Config
from dovetail.config.errors import ConfigError
from dovetail.config.registry import (
    component_name,
    import_package,
    imported_packages,
    script_module,
)
from dovetail.config.traverse import visit

ENTRY_POINTS = "dovetail"
_OWN = __name__.partition(".")[0]


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


def missing_imports(names: Iterable[str]) -> list[str]:
    """Returns those of the named modules that nobody has imported in this process."""
    there = imported_packages() | {script_module()}

    def is_there(name: str) -> bool:
        return name in sys.modules or any(f"{name}.".startswith(f"{each}.") for each in there)

    return [name for name in names if not is_there(name)]


def own_modules(config: Config[Any]) -> list[str]:
    """Returns the modules of a user's components in a config: who reads its text needs them."""
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
