"""Leaks: lines that name code they must not depend on."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from dovetail.modularity.ownership import dotted_name, is_inside, owned_lines, with_emptied_files

# Subpackages that compose components, so they may name any.
COMPOSING = ("models", "experiments", "interop")
# The table of renamed classes names them all, so that old configs load. It wires nothing.
OLD_NAMES = "config/old_names.py"


@dataclass(frozen=True, order=True)
class SourceLine:
    """A line of the package."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.text}"


def leaking_lines(package: Path, owned: Collection[str]) -> list[SourceLine]:
    """Returns the lines that name owned code, outside of it and of subpackages that compose.

    Args:
        package: the package's folder.
        owned: code of the package; see `ownership`.
    """
    naming = naming_lines(package, owned)
    return [line for line in naming if line.file.partition("/")[0] not in COMPOSING]


def naming_lines(package: Path, owned: Collection[str]) -> list[SourceLine]:
    """Returns the lines of all other code that import owned code, or use what they imported."""
    owned = with_emptied_files(package, owned)
    names = {dotted_name(code, package.name) for code in owned}
    matches = []
    for path in sorted(package.rglob("*.py")):
        file = str(path.relative_to(package))
        if not is_inside(file, owned):
            source = path.read_text()
            lines = source.splitlines()
            local = {code.partition(":")[2] for code in owned if code.startswith(f"{file}:")}
            numbers = _facts(source).lines_naming(names, local) - owned_lines(source, file, owned)
            matches += [SourceLine(file, n, lines[n - 1].strip()) for n in sorted(numbers)]
    return matches


def importing_lines(package: Path, outside: str) -> list[SourceLine]:
    """Returns the lines of a package that import another, or use what they imported of it."""
    found = []
    for path in sorted(package.rglob("*.py")):
        source = path.read_text()
        lines = source.splitlines()
        numbers = _facts(source).lines_importing({outside})
        file = str(path.relative_to(package))
        found += [SourceLine(file, n, lines[n - 1].strip()) for n in sorted(numbers)]
    return found


@dataclass(frozen=True)
class _FileFacts:
    """The imports of a file, with lines, dotted name and bound name; its names; its strings."""

    imports: list[tuple[range, str, str]]
    names: dict[str, set[int]]
    strings: list[tuple[int, str]]

    def lines_naming(self, dotted: Collection[str], local: Collection[str]) -> set[int]:
        """Returns the lines that name any of these, and those that use what they import.

        A string may name a module to be imported later.
        """
        lines = {number for number, text in self.strings if _is_within(text, dotted)}
        lines |= {number for name in local for number in self.names.get(name, ())}
        return lines | self.lines_importing(dotted)

    def lines_importing(self, dotted: Collection[str]) -> set[int]:
        """Returns the lines that import any of these, and those that use what they import."""
        lines: set[int] = set()
        for span, name, bound in self.imports:
            if _is_within(name, dotted):
                lines |= {*span} | self.names.get(bound, set())
        return lines


@functools.lru_cache(maxsize=1024)
def _facts(source: str) -> _FileFacts:
    """Parses a file once for all features."""
    tree = ast.parse(source)
    names: dict[str, set[int]] = {}
    strings = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.setdefault(node.id, set()).add(node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append((node.lineno, node.value.replace(":", ".")))
    return _FileFacts(list(_imports(tree)), names, strings)


def _is_within(name: str, dotted: Collection[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in dotted)


def _imports(tree: ast.Module) -> Iterator[tuple[range, str, str]]:
    """Yields every import, also inside functions: its lines, the dotted name, the bound name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _span(node), alias.name, alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                bound = alias.asname or alias.name
                yield _span(node), node.module, bound
                yield _span(alias), f"{node.module}.{alias.name}", bound


def _span(node: ast.stmt | ast.alias) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
