"""A report as a table for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from dovetail.modularity.scan.history import Addition, History
from dovetail.modularity.scan.hits import KINDS
from dovetail.modularity.scan.repetition import Repetition
from dovetail.modularity.scan.report import FeatureReport, Report
from dovetail.modularity.scan.sizes import Size

_COMMITS_SHOWN = 10


def as_text(report: Report, histories: dict[str, History], show: int = 3) -> str:
    """Writes a report, with the first `show` places of each kind."""
    lines = [*_code_base(report)]
    for feature in report.features:
        lines += ["", *_feature(feature, report, show)]
        if feature.name in histories:
            lines += _history(histories[feature.name])
    return "\n".join(lines)


def _code_base(report: Report) -> Iterator[str]:
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
        f"median {repetition.median:.0%} of the lines of one stand in another one; "
        f"worst {worst.share:.0%}: {worst.file} in {worst.other}"
    )


def _feature(feature: FeatureReport, report: Report, show: int) -> Iterator[str]:
    summary = feature.summary()
    yield f"{feature.name} ({', '.join(feature.words)})"
    if not feature.lines:
        yield "  not named anywhere"
        return
    home = f"defined in {feature.home}" if feature.home else "defined nowhere by that name"
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


def _history(history: History) -> Iterator[str]:
    rest = "" if history.complete else ", and stopped there"
    yield _row(
        "commits",
        str(len(history.additions)),
        f"brought it to new places (read {history.num_commits} that may name it{rest})",
    )
    for each in history.additions[:_COMMITS_SHOWN]:
        yield _row("", "", _addition(each))
    if len(history.additions) > _COMMITS_SHOWN:
        yield _row("", "", f"... and {len(history.additions) - _COMMITS_SHOWN} more (--json)")


def _addition(each: Addition) -> str:
    return (
        f"{each.commit} {each.date} {each.subject[:50]}: "
        f"{each.existing_files_lines} lines in {each.existing_files} existing files, "
        f"{each.new_files_lines} in {each.new_files} new; "
        f"it reached {len(each.reached)} files, {each.reached_existing} of them existing"
    )


def _sized(label: str, size: Size | None) -> str:
    if size is None:
        return _row(label, "0", "none found")
    return _row(label, str(size.count), f"{size.name}, {size.file}:{size.line}")


def _listed(label: str, number: int, places: Sequence[str]) -> Iterator[str]:
    yield _row(label, str(number), places[0] if places else "")
    for place in places[1:]:
        yield _row("", "", place)


def _row(label: str, number: str, rest: str) -> str:
    return f"  {label:<24}{number:>6}  {rest}".rstrip()
