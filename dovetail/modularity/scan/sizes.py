"""The largest config and the largest constructor of a code base."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dovetail.modularity.scan.classes import ClassFacts


@dataclass(frozen=True)
class Size:
    """A class or a file, where it stands, and how many fields or parameters it has."""

    name: str
    file: str
    line: int
    count: int


def largest_config(classes: Sequence[ClassFacts], files: Iterable[Size] = ()) -> Size | None:
    """Returns the config with the most fields, inherited ones included, or file with most keys."""
    lookup = _Lookup(classes)
    sizes = [
        Size(each.name, each.file, each.line, len(lookup.taken(each)))
        for each in classes
        if lookup.is_config(each)
    ]
    return _largest([*sizes, *files])


def largest_constructor(classes: Sequence[ClassFacts]) -> Size | None:
    """Returns the class, no config, that takes the most: by `__init__`, or as fields."""
    lookup = _Lookup(classes)
    return _largest(
        Size(each.name, each.file, each.init_line, len(lookup.taken(each)))
        for each in classes
        if not lookup.is_config(each)
    )


def _largest(sizes: Iterable[Size]) -> Size | None:
    filled = [size for size in sizes if size.count]
    return max(filled, key=lambda size: (size.count, size.file), default=None)


class _Lookup:
    """Finds the bases of a class in the same code base, by their names."""

    def __init__(self, classes: Sequence[ClassFacts]) -> None:
        self._by_name: dict[str, list[ClassFacts]] = {}
        for each in classes:
            self._by_name.setdefault(each.name, []).append(each)

    def taken(self, facts: ClassFacts) -> set[str]:
        """Returns what building the class takes: its fields, and its nearest constructor's."""
        taken: set[str] = set()
        for each in self._lineage(facts):
            taken |= set(each.fields if each.init is None else each.init)
        return taken

    def is_config(self, facts: ClassFacts) -> bool:
        """Says whether a class is a config by its own name, or by those of its bases' bases."""
        return any(each.is_config for each in self._lineage(facts))

    def _lineage(self, facts: ClassFacts) -> list[ClassFacts]:
        """Returns the class and what it inherits from, up to where a constructor is."""
        line = [facts]
        for each in line:  # it grows as we go
            if each.init is None:
                bases = [self._base(name, each) for name in each.bases]
                line += [base for base in bases if base is not None and base not in line]
        return line

    def _base(self, name: str, child: ClassFacts) -> ClassFacts | None:
        """Returns the class meant by `a.b.Base`: of the same file, or the only one of the name."""
        parts = name.split(".")
        for start in range(len(parts)):
            found = self._by_name.get(".".join(parts[start:]), [])
            beside = [each for each in found if each.file == child.file]
            if len(beside or found) == 1:
                return (beside or found)[0]
        return None
