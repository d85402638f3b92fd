"""The survey on disk: a page with its figures, the plot of growth, and all that was found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from dovetail.features import features
from dovetail.hardware import write_whole
from dovetail.modularity.growth import Growth, draw, growth
from dovetail.modularity.history import Commit, additions
from dovetail.modularity.mentions import mentions
from dovetail.modularity.report import figures, reasons, table
from dovetail.modularity.survey import Survey
from dovetail.modularity.workers import Told

NAME = "modularity-measured"


def write_all(found: Survey, folder: Path, *, jobs: int, tell: Told) -> None:
    """Measures growth, reads the history and writes everything to a folder."""
    grown = growth(jobs=jobs, tell=tell)
    added = additions(features())
    folder.mkdir(parents=True, exist_ok=True)
    everything = found.as_json() | {
        "growth": [asdict(one) for one in grown],
        "commits": {name: [one.as_json() for one in each] for name, each in added.items()},
    }
    write_whole(folder / f"{NAME}.json", json.dumps(everything, indent=1))
    write_whole(folder / f"{NAME}.svg", draw(grown))
    write_whole(folder / f"{NAME}.md", "\n".join(_page(found, grown, added)) + "\n")


def _page(
    found: Survey, grown: list[Growth], added: Mapping[str, Sequence[Commit]]
) -> Iterator[str]:
    yield "# The measured figures"
    yield ""
    yield "Written by `dovetail modularity --write docs`. [What they mean](modularity.md)."
    yield ""
    yield from (f"- {line}" for line in figures(found))
    yield ""
    yield "## Growth"
    yield ""
    yield f"![Lines in existing files to add a feature]({NAME}.svg)"
    yield ""
    yield from _growth(grown)
    yield "## By feature"
    yield ""
    yield from _features(found, added)
    yield "## What the commits touched that brought the features"
    yield ""
    yield from _commits(added)
    yield "## Makes no sense, by declaration"
    yield ""
    yield from (f"- {line}" for line in reasons(found))
    yield ""
    yield "## The matrix"
    yield ""
    yield "A column is a tiny form that several sizes and variants share."
    yield ""
    yield "```text"
    yield from table(found.matrix)
    yield "```"


def _growth(grown: Iterable[Growth]) -> Iterator[str]:
    for one in grown:
        for what, points in (("families", one.models), ("features", one.variants)):
            at = ", ".join(f"{p.lines} with {p.size} ({p.composed} composed)" for p in points)
            yield f"- {one.feature}, lines changed by the number of {what}: {at}"
    yield ""


def _features(found: Survey, added: Mapping[str, Sequence[Commit]]) -> Iterator[str]:
    known = features()
    yield (
        "Lines changed are in other files, and must be 0. Joints are lines of shared files that "
        "name the feature for a [stated reason](../dovetail/modularity/joints.py). Composed are "
        "lines of families, experiments and formats that use it. Compared are the experiments "
        "which do not use it; they stayed the same without it. A feature with a star owns nothing "
        "but its modifier: it sets parts that are there anyway, and its 0 says little."
    )
    yield ""
    yield "| feature | lines changed | joints | composed | compared | commits of its files |"
    yield "|---|---|---|---|---|---|"
    for name, one in found.deletions.items():
        star = "" if len(known[name].files) > 1 else "*"
        commits = ", ".join(f"`{each.commit}`" for each in added[name])
        yield (
            f"| {name}{star} | {one.count} | {len(mentions(known[name]))} | {len(one.composed)} in "
            f"{len(one.users)} files | {one.kept} | {commits} |"
        )
    yield ""


def _commits(added: Mapping[str, Sequence[Commit]]) -> Iterator[str]:
    yield (
        "Lines added or removed in files that were there before: in files that compose "
        "(experiments, families, formats, features), and in all others. A commit may do other "
        "things, too: the largest rearranged the layers into folders."
    )
    yield ""
    yield "| commit | features | new lines | in compositions | in other files |"
    yield "|---|---|---|---|---|"
    brought: dict[Commit, list[str]] = {}
    for name, commits in added.items():
        for one in commits:
            brought.setdefault(one, []).append(name)
    for one, names in brought.items():
        lines = f"{one.new_lines} | {one.composed_lines} | {one.touched_lines}"
        yield f"| `{one.commit}` {one.subject} | {', '.join(names)} | {lines} |"
    yield ""
