"""What a scan found, as plain data."""

from __future__ import annotations

import collections
from dataclasses import asdict, dataclass
from typing import Any

from dovetail.modularity.scan.copies import Copies
from dovetail.modularity.scan.hits import KINDS, WIRING, Hit
from dovetail.modularity.scan.repetition import Repetition
from dovetail.modularity.scan.sizes import Size


@dataclass(frozen=True)
class FeatureReport:
    """One feature: every place that names it, and what they add up to."""

    name: str
    words: tuple[str, ...]
    hits: tuple[Hit, ...]
    lines: dict[str, int]  # for each file that names it, how many lines do
    copies: tuple[Copies, ...]
    model_files: frozenset[str]
    named_files: frozenset[str]  # which, or whose folders, are named for it

    @property
    def home(self) -> str | None:
        """The file that defines the feature: whose classes of that name are imported most."""
        names: dict[str, set[str]] = {}
        for hit in self.of_kind("definitions"):
            names.setdefault(hit.file, set()).add(hit.name)
        imported = collections.Counter(hit.name for hit in self.of_kind("imports"))

        def rank(file: str) -> tuple[int, bool, int, int, str]:
            everything = sum(imported[name] for name in names[file])
            classes = sum(imported[name] for name in names[file] if name.lstrip("_")[:1].isupper())
            return classes, file in self.named_files, everything, len(names[file]), file

        return max(names, key=rank, default=None)

    @property
    def own_files(self) -> frozenset[str]:
        """The files that are about the feature: its home, and those named for it."""
        return self.named_files | ({self.home} if self.home else set())

    def of_kind(self, kind: str) -> list[Hit]:
        """Returns the places of one kind."""
        return [hit for hit in self.hits if hit.kind == kind]

    def summary(self) -> dict[str, Any]:
        """Returns the counts."""
        own = self.own_files
        wired = {hit.file for hit in self.hits if hit.kind in WIRING} - own
        counts = {kind: len(self.of_kind(kind)) for kind in KINDS}
        elsewhere = {
            f"{kind}_elsewhere": sum(hit.file not in own for hit in self.of_kind(kind))
            for kind in KINDS
        }
        return {
            "files": len(self.lines),
            "other_files": len(set(self.lines) - own),
            "lines": sum(self.lines.values()),
            "lines_elsewhere": sum(n for file, n in self.lines.items() if file not in own),
            "wired_into_files": len(wired),
            "wired_into_model_files": len(wired & self.model_files),
            **counts,
            **elsewhere,
            "copies": sum(each.num_files - 1 for each in self.copies),
            "most_copied_files": max((each.num_files for each in self.copies), default=0),
        }

    def as_json(self) -> dict[str, Any]:
        """Returns all of it for JSON: places as `file:line`, by kind."""
        return {
            "words": list(self.words),
            "home": self.home,
            "own_files": sorted(self.own_files),
            "summary": self.summary(),
            "places": {
                kind: [f"{hit.file}:{hit.line} {hit.name}" for hit in self.of_kind(kind)]
                for kind in KINDS
            },
            "copies": [
                [f"{each.file}:{each.line} {each.name}" for each in copies.members]
                for copies in self.copies
            ],
            "lines_by_file": self.lines,
        }


@dataclass(frozen=True)
class Report:
    """A scan of one code base."""

    path: str
    num_files: int
    num_lines: int
    tests: bool
    unparsable: dict[str, str]  # the reason, by file
    num_model_files: int
    largest_config: Size | None
    largest_constructor: Size | None
    repetition: Repetition | None
    features: tuple[FeatureReport, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns all of it for JSON."""
        plain = {
            name: getattr(self, name)
            for name in ("path", "num_files", "num_lines", "tests", "unparsable", "num_model_files")
        }
        sized = {
            name: asdict(value) if value is not None else None
            for name, value in (
                ("largest_config", self.largest_config),
                ("largest_constructor", self.largest_constructor),
                ("repetition", self.repetition),
            )
        }
        return {**plain, **sized, "features": {f.name: f.as_json() for f in self.features}}
