"""The report of a scan: plain data, JSON and text."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dovetail.modularity.scan.classes import ClassSize
from dovetail.modularity.scan.duplication import CopyGroup, Repetition
from dovetail.modularity.scan.history import FeatureCommit, FeatureHistory
from dovetail.modularity.scan.hits import KINDS, WIRING, Hit


@dataclass(frozen=True)
class FeatureScan:
    """The scan of one feature: every place that names it."""

    name: str
    words: tuple[str, ...]
    hits: tuple[Hit, ...]
    lines: dict[str, int]  # the number of lines that name it, by file
    copies: tuple[CopyGroup, ...]
    model_files: frozenset[str]
    named_files: frozenset[str]  # files named for it, or in a folder named for it

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
        """The feature's own files: its home, and those named for it."""
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
        """Returns the scan as JSON values, with places as `file:line` by kind."""
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
class ScanReport:
    """A scan of one code base."""

    path: str
    num_files: int
    num_lines: int
    tests: bool
    unparsable: dict[str, str]  # the reason, by file
    num_model_files: int
    largest_config: ClassSize | None
    largest_constructor: ClassSize | None
    repetition: Repetition | None
    features: tuple[FeatureScan, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        plain = asdict(replace(self, features=()))
        return plain | {"features": {each.name: each.as_json() for each in self.features}}


_COMMITS_SHOWN = 10


def as_text(report: ScanReport, histories: dict[str, FeatureHistory], show: int = 3) -> str:
    """Writes a report, with the first `show` places of each kind."""
    lines = [*_code_base(report)]
    for feature in report.features:
        lines += ["", *_feature(feature, report, show)]
        if feature.name in histories:
            lines += _history(histories[feature.name])
    return "\n".join(lines)


def _code_base(report: ScanReport) -> Iterator[str]:
    tests = "" if report.tests else ", tests left out"
    yield f"{report.path}: {report.num_files} Python files, {report.num_lines:,} lines{tests}"
    version = f"as Python {sys.version_info.major}.{sys.version_info.minor}"
    failures = [f"{name}: {reason} ({version})" for name, reason in report.unparsable.items()]
    if failures:
        yield from _listed("unparsable", len(failures), failures)
    yield _sized("largest config", report.largest_config)
    yield _sized("largest constructor", report.largest_constructor)
    yield _row("model files", str(report.num_model_files), _repetition(report.repetition))


def _repetition(repetition: Repetition | None) -> str:
    if repetition is None:
        return "too few to compare"
    worst = repetition.pairs[0]
    return (
        f"median {repetition.median:.0%} of the lines of one are also in another one; "
        f"worst {worst.share:.0%}: {worst.file} in {worst.other}"
    )


def _feature(feature: FeatureScan, report: ScanReport, show: int) -> Iterator[str]:
    summary = feature.summary()
    yield f"{feature.name} ({', '.join(feature.words)})"
    if not feature.lines:
        yield "  not named anywhere"
        return
    home = f"defined in {feature.home}" if feature.home else "no definition has that name"
    yield _row("files", str(summary["files"]), f"{summary['lines']:,} lines name it; {home}")
    lines = f"{summary['lines_elsewhere']:,} lines"
    yield _row("files not its own", str(summary["other_files"]), lines)
    models = f"{summary['wired_into_model_files']} of {report.num_model_files} model files"
    yield _row("wired into", str(summary["wired_into_files"]), f"of them; {models}")
    for kind in KINDS:
        hits = feature.of_kind(kind)
        places = [f"{hit.file}:{hit.line} {hit.name}" for hit in hits[:show]]
        outside = summary[f"{kind}_elsewhere"]
        note = [f"{outside} not in its own files"] if hits else []
        yield from _listed(kind.replace("_", " "), len(hits), [*note, *places])
    groups = [
        f"{copies.members[0].name} in {copies.num_files} files, "
        f"first {copies.members[0].file}:{copies.members[0].line}"
        for copies in feature.copies[:show]
    ]
    yield from _listed("copies", summary["copies"], groups)


def _history(history: FeatureHistory) -> Iterator[str]:
    rest = "" if history.complete else ", and stopped there"
    yield _row(
        "commits",
        str(len(history.additions)),
        f"spread it to more files (read {history.num_commits} that may name it{rest})",
    )
    for each in history.additions[:_COMMITS_SHOWN]:
        yield _row("", "", _addition(each))
    if len(history.additions) > _COMMITS_SHOWN:
        yield _row("", "", f"... and {len(history.additions) - _COMMITS_SHOWN} more (--json)")


def _addition(each: FeatureCommit) -> str:
    return (
        f"{each.commit} {each.date} {each.subject[:50]}: "
        f"{each.existing_files_lines} lines in {each.existing_files} existing files, "
        f"{each.new_files_lines} in {each.new_files} new; "
        f"it reached {len(each.reached)} files, {each.reached_existing} of them existing"
    )


def _sized(label: str, size: ClassSize | None) -> str:
    if size is None:
        return _row(label, "0", "none found")
    return _row(label, str(size.count), f"{size.name}, {size.file}:{size.line}")


def _listed(label: str, number: int, places: Sequence[str]) -> Iterator[str]:
    yield _row(label, str(number), places[0] if places else "")
    for place in places[1:]:
        yield _row("", "", place)


def _row(label: str, number: str, rest: str) -> str:
    return f"  {label:<24}{number:>6}  {rest}".rstrip()
