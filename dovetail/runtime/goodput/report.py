"""The goodput of a run, as text and as a page."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.runtime.goodput.classes import CLASSES
from dovetail.utils import format_duration, format_table, plural
from dovetail.utils.html import Html, bar, colour, page, table, tag

if TYPE_CHECKING:
    from dovetail.runtime.goodput.account import Goodput

_MARKS = {
    "step": "█",
    "input": "i",
    "save": "w",
    "evaluate": "e",
    "check": "k",
    "start": "s",
    "compile": "c",
    "restore": "r",
    "peers": "p",
    "rolled_back": "x",
    "idle": "·",
}
_NUMBERS = {name: number for number, name in enumerate(CLASSES)}
_COLUMNS, _MAX_ROWS = 64, 8


def goodput_summary(found: Goodput) -> str:
    """Returns one line: the fraction, and what took most of the rest."""
    rest = sorted(((s, name) for name, s in found.seconds.items() if name != "step"), reverse=True)
    most = ", ".join(f"{CLASSES[n]} {format_duration(s)}" for s, n in rest[:3] if s >= 0.05)
    spent = f"steps {found.fraction:.1%} of {format_duration(found.wall)}"
    return f"goodput: {spent}" + (f"; {most}" if most else "")


def goodput_report(found: Goodput) -> str:
    """Returns a table and a timeline."""
    return "\n\n".join(
        [
            "\n".join(_facts(found)),
            format_table(_rows(found), header=("class", "time", "share"), align="<>>"),
            _timeline(found),
        ]
    )


def goodput_page(found: Goodput) -> str:
    """Returns a complete page."""
    rows = [
        (tag("span", _key(kind), label), time, share)
        for kind, (label, time, share) in zip(_shown(found), _rows(found), strict=True)
    ]
    wall = found.wall or 1.0
    return page(
        f"Goodput of {found.run}" if found.run else "Goodput",
        *(tag("p", line) for line in _facts(found)),
        tag("h2", "Time by class"),
        bar((CLASSES[kind], found.seconds[kind] / wall, _NUMBERS[kind]) for kind in CLASSES),
        table(rows, ("class", "time", "share"), numbers=(1, 2)),
        tag("h2", "Timeline"),
        *_bars(found),
    )


def _facts(found: Goodput) -> list[str]:
    restarts = sum(found.restarts.values())
    causes = ", ".join(f"{cause} {count}" for cause, count in found.restarts.items())
    spent = f"goodput {found.fraction:.2%} of {format_duration(found.wall)}"
    lives = f"{plural(found.lives, 'life', 'lives')}; {plural(restarts, 'restart')}"
    return [
        f"{spent}; {found.last_hour_fraction:.2%} in the last hour",
        f"step {found.steps:,}; {plural(found.repeated_steps, 'step')} repeated",
        f"{lives} by the supervisor" + (f" ({causes})" if causes else ""),
    ]


def _shown(found: Goodput) -> list[str]:
    return [name for name in CLASSES if found.seconds[name] > 0 or name == "step"]


def _rows(found: Goodput) -> list[tuple[str, str, str]]:
    wall = found.wall or 1.0
    return [
        (
            CLASSES[name],
            format_duration(found.seconds[name]),
            f"{found.seconds[name] / wall:.2%}",
        )
        for name in _shown(found)
    ]


def _timeline(found: Goodput) -> str:
    rows = min(max(found.lives, 1), _MAX_ROWS)
    marks = "".join(_MARKS[_main(cell)] for cell in found.cells(rows * _COLUMNS))
    each = found.wall / rows
    lines = [
        (format_duration(round(row * each)), f"|{marks[row * _COLUMNS : (row + 1) * _COLUMNS]}|")
        for row in range(rows)
    ]
    legend = "  ".join(f"{_MARKS[name]} {CLASSES[name]}" for name in _shown(found))
    scale = format_duration(each / _COLUMNS)
    title = f"timeline, {scale} per character"
    return "\n".join([title, format_table(lines, align="><"), legend])


def _bars(found: Goodput) -> list[Html]:
    """Returns rows of coloured pieces, in order."""
    rows = min(max(found.lives, 1), _MAX_ROWS)
    count = 4 * _COLUMNS
    cells = [_main(cell) for cell in found.cells(rows * count)]
    each, bars = found.wall / rows, []
    for row in range(rows):
        pieces = [
            (name, len(list(group)))
            for name, group in itertools.groupby(cells[row * count : (row + 1) * count])
        ]
        begin, end = (format_duration(round(number * each)) for number in (row, row + 1))
        bars += [
            bar((CLASSES[name], length / count, _NUMBERS[name]) for name, length in pieces),
            tag("p", tag("small", f"{begin} to {end}")),
        ]
    return bars


def _main(cell: Mapping[str, float]) -> str:
    return max(cell, key=lambda name: cell[name])


def _key(kind: str) -> Html:
    return tag("span", class_="key", style=f"background:{colour(_NUMBERS[kind])}")
