"""The survey on disk: a page with its figures, the plot of growth, and all that was found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from dovetail.features import features
from dovetail.hardware import write_whole
from dovetail.modularity.growth import Growth, draw, growth
from dovetail.modularity.history import Addition, additions
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
        "growth": [vars(one) for one in grown],
        "commits": [one.as_json() for one in added],
    }
    write_whole(folder / f"{NAME}.json", json.dumps(everything, indent=1))
    write_whole(folder / f"{NAME}.svg", draw(grown))
    write_whole(folder / f"{NAME}.md", "\n".join(_page(found, grown, added)) + "\n")


def _page(found: Survey, grown: list[Growth], added: list[Addition]) -> Iterator[str]:
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
    yield "## What the commits touched that added the features"
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
            at = ", ".join(f"{lines} with {size}" for size, lines in points)
            yield f"- {one.feature}, lines changed by the number of {what}: {at}"
    yield ""


def _commits(added: Iterable[Addition]) -> Iterator[str]:
    yield (
        "Lines added or removed in files that were there before: in files that compose "
        "(experiments, families, formats), and in all others."
    )
    yield ""
    yield "| commit | features | new lines | in compositions | in other files |"
    yield "|---|---|---|---|---|"
    for one in added:
        names = ", ".join(one.features)
        lines = f"{one.new_lines} | {one.composed_lines} | {one.touched_lines}"
        yield f"| `{one.commit}` {one.subject} | {names} | {lines} |"
    yield ""
