"""Files of a package as features name them (`layers/moe/`, `layers/norm/rms.py`), and modules."""

from __future__ import annotations

from collections.abc import Iterable


def module_of(file: str, package: str = "dovetail") -> str:
    """Returns the module that a file or a folder is imported as."""
    return f"{package}.{file.removesuffix('.py').rstrip('/').replace('/', '.')}"


def file_of(module: str) -> str:
    """Returns the file that a module is read from, as features name it."""
    return f"{module.partition('.')[2].replace('.', '/')}.py"


def is_inside(file: str, places: Iterable[str]) -> bool:
    """Says whether a file is one of these, or in a folder of these."""
    return any(file == one or (one.endswith("/") and file.startswith(one)) for one in places)
