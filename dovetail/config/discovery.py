"""Finding what a folder holds: a new file is known by being there, and no list names it."""

from __future__ import annotations

import importlib
import pkgutil


def import_submodules(package: str) -> None:
    """Imports every module of a package, and of the packages inside it, in the order of names."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        name = f"{package}.{module.name}"
        importlib.import_module(name)
        if module.ispkg:
            import_submodules(name)
