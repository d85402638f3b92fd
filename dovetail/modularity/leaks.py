"""Leaks: the lines of a package that speak of files which are not theirs to know."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from dovetail.modularity.paths import is_inside, module_of

# Rooms that compose: what they name, they use.
COMPOSERS = ("models", "experiments", "interop")


@dataclass(frozen=True, order=True)
class Line:
    """A line that would have to go."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        """Points to it."""
        return f"{self.file}:{self.number}: {self.text}"


def leaking_lines(package: Path, gone: Collection[str]) -> list[Line]:
    """Returns the lines in rooms that do not compose which name what is gone.

    Args:
        package: the package's folder.
        gone: files of the package, or folders with a slash at the end, from its folder on.
    """
    found = all_naming_lines(package, gone)
    return [line for line in found if line.file.partition("/")[0] not in COMPOSERS]


def all_naming_lines(package: Path, gone: Collection[str]) -> list[Line]:
    """Returns the lines of all files that import what is gone, or use what they imported."""
    files = sorted(package.rglob("*.py"))
    there = [file for file in files if not is_inside(str(file.relative_to(package)), gone)]
    return [line for file in there for line in naming_lines(package, file, gone)]


def naming_lines(package: Path, file: Path, gone: Collection[str]) -> list[Line]:
    """Returns the lines of one file that import what is gone, or use what they imported."""
    modules = {module_of(name, package.name) for name in gone}
    source = file.read_text()
    lines = source.splitlines()
    name = str(file.relative_to(package))
    numbers = sorted(_facts(source).lines_naming(modules))
    return [Line(name, number, lines[number - 1].strip()) for number in numbers]


@dataclass(frozen=True)
class _Facts:
    """What a file says: its imports, with module and bound name; its names; its texts."""

    imports: list[tuple[range, str, str]]
    names: dict[str, set[int]]
    texts: list[tuple[int, str]]

    def lines_naming(self, modules: Collection[str]) -> set[int]:
        """Returns the lines of imports of these modules, and of uses of what was imported.

        A module that is named in a text may be meant to be imported by it.
        """
        lines = {number for number, text in self.texts if _names_one(text, modules)}
        for span, module, bound in self.imports:
            if _names_one(module, modules):
                lines |= {*span} | self.names.get(bound, set())
        return lines


@functools.lru_cache(maxsize=1024)
def _facts(source: str) -> _Facts:
    """Reads a file once, however many features are looked for in it."""
    tree = ast.parse(source)
    names: dict[str, set[int]] = {}
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.setdefault(node.id, set()).add(node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append((node.lineno, node.value))
    imports = [
        (range(node.lineno, (node.end_lineno or node.lineno) + 1), module, bound)
        for node, module, bound in _imports(tree)
    ]
    return _Facts(imports, names, texts)


def _names_one(text: str, modules: Collection[str]) -> bool:
    return any(text == one or text.startswith((f"{one}.", f"{one}:")) for one in modules)


def _imports(tree: ast.Module) -> Iterator[tuple[ast.stmt, str, str]]:
    """Yields every import, also inside functions, with the module and the name that it binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name, alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                bound = alias.asname or alias.name
                yield node, node.module, bound
                yield node, f"{node.module}.{alias.name}", bound
