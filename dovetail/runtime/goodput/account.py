"""Reads the goodput logs of a run: a timeline of all its lives, and the seconds of each class.

Rules:
- The processes of a run work in lockstep, so the timeline comes from the log of process 0. A life
  without that log uses the lowest process that has one.
- A step counts as rolled back if a later record repeats it, or if its life never ended it.
- The time between the last line of a life and the start of the next is idle.
- Lives follow each other. If the clock was set back between two, no idle time is counted there.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.config import RunError
from dovetail.runtime.goodput.classes import CLASSES, RECORDED
from dovetail.utils import read_json_lines

_HOUR = 3600.0


@dataclass(frozen=True)
class Record:
    """One line of a log.

    Attributes:
        at: when it was written, on the clock of the host.
        seconds: the time since the record before it, by class.
        steps: the last step before it, and the last step in it; None before the first step.
        saves: how many saves began in it.
        is_done: whether all steps that were started have ended, in order.
    """

    at: float
    seconds: Mapping[str, float]
    steps: tuple[int, int] | None = None
    saves: int = 0
    is_done: bool = False

    @property
    def total(self) -> float:
        """The seconds that it covers."""
        return sum(self.seconds.values())


Lives = Mapping[int, Sequence[Record]]
"""The records of each life, by its number."""


@dataclass(frozen=True)
class Span:
    """A piece of the timeline.

    Attributes:
        life: the number of the life; before it, for idle time.
        begin: seconds since the run began.
        seconds: its seconds by class.
    """

    life: int
    begin: float
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Its length in seconds."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Goodput:
    """The time of a run by class.

    Attributes:
        seconds: by class, all of `CLASSES`; their sum is the wall time.
        last_hour: the same for the last hour.
        steps: the last step that was done.
        repeated_steps: how many steps were done more than once, counted each time.
        saves: how many saves the run started.
        lives: how many times the run was started.
        restarts: by cause, how often the supervisor restarted the run.
        timeline: the same seconds, in order.
        run: the name of the run, for the title of its page.
    """

    seconds: Mapping[str, float]
    last_hour: Mapping[str, float]
    steps: int
    repeated_steps: int
    saves: int
    lives: int
    restarts: Mapping[str, int]
    timeline: Sequence[Span] = field(repr=False)
    run: str = ""

    @property
    def wall(self) -> float:
        """The seconds from the first start to the last line."""
        return sum(self.seconds.values())

    @property
    def fraction(self) -> float:
        """The productive fraction of the run: steps that were not repeated."""
        return _fraction(self.seconds)

    @property
    def last_hour_fraction(self) -> float:
        """The productive fraction of the last hour."""
        return _fraction(self.last_hour)

    def cells(self, count: int) -> list[dict[str, float]]:
        """Returns the seconds by class in so many equal parts of the timeline."""
        cells = [dict.fromkeys(CLASSES, 0.0) for _ in range(count)]
        length = self.wall / count
        for span in self.timeline if length > 0 else ():
            first = min(int(span.begin / length), count - 1)
            last = min(int((span.begin + span.total) / length), count - 1)
            for number in range(first, last + 1):
                part = _part(span, number * length, (number + 1) * length)
                for name, seconds in part.seconds.items():
                    cells[number][name] += seconds
        return cells

    def facts(self) -> dict[str, Any]:
        """Returns everything but the timeline, for JSON."""
        return {
            "goodput": self.fraction,
            "goodput_last_hour": self.last_hour_fraction,
            "wall_seconds": self.wall,
            "seconds": dict(self.seconds),
            "last_hour_seconds": dict(self.last_hour),
            "steps": self.steps,
            "repeated_steps": self.repeated_steps,
            "saves": self.saves,
            "lives": self.lives,
            "restarts": dict(self.restarts),
        }

    def summary(self) -> str:
        """Returns one line: the fraction, and what took most of the rest."""
        from dovetail.runtime.goodput.report import goodput_summary

        return goodput_summary(self)

    def report(self) -> str:
        """Returns a table and a timeline, as `dovetail goodput` prints them."""
        from dovetail.runtime.goodput.report import goodput_report

        return goodput_report(self)

    def page(self) -> str:
        """Returns an HTML page with the timeline."""
        from dovetail.runtime.goodput.report import goodput_page

        return goodput_page(self)

    def _repr_html_(self) -> str:
        """Shows the page in a notebook."""
        from dovetail.utils.html import frame

        return frame(self.page())


def goodput(folder: Path | str, process: int | None = None) -> Goodput:
    """Returns the time of a run by class.

    Args:
        folder: the run folder. The run may be training.
        process: the process whose log is read; None is process 0, or the lowest with a log.
    """
    folder = Path(folder)
    lives = read_lives(folder, process)
    if not lives:
        whose = "" if process is None else f" of process {process}"
        raise RunError(
            f"{folder} has no goodput log{whose} ({folder / 'goodput'}): it was trained by an "
            "older version, or by a loop of its own."
        )
    spans = timeline(lives)
    records = [record for life in lives.values() for record in life]
    ranges = [record.steps for record in records if record.steps is not None]
    wall = sum(span.total for span in spans)
    return Goodput(
        seconds=_sum(spans),
        last_hour=_sum(_part(span, wall - _HOUR) for span in spans),
        steps=ranges[-1][1] if ranges else 0,
        repeated_steps=sum(last - first for first, last in ranges) - _distinct(ranges),
        saves=sum(record.saves for record in records),
        lives=len(lives),
        restarts=_restarts(folder),
        timeline=spans,
        run=folder.name,
    )


def read_lives(folder: Path, process: int | None = None, before: int | None = None) -> Lives:
    """Returns the records of a run; damaged lines are left out.

    Args:
        folder: the run folder.
        process: the process whose log is read; None is the lowest of each life.
        before: leaves out this life and later ones.
    """
    files: dict[int, tuple[int, Path]] = {}
    with contextlib.suppress(OSError):
        for path in (folder / "goodput").iterdir():
            name = re.fullmatch(r"(\d{6,})-(\d+)\.jsonl", path.name)
            if name is None or process not in (None, int(name[2])):
                continue
            life, found = int(name[1]), (int(name[2]), path)
            if before is None or life < before:
                files[life] = min(files.get(life, found), found)
    lives = {
        life: [record for line in read_json_lines(path) if (record := _record(line)) is not None]
        for life, (_, path) in sorted(files.items())
    }
    return {life: records for life, records in lives.items() if records}


def timeline(lives: Lives, resumes_at: int | None = None) -> list[Span]:
    """Returns the spans of all lives; repeated steps are in the class `rolled_back`.

    Args:
        lives: as `read_lives` returns them.
        resumes_at: the step from which the run continues now: later steps were rolled back.
    """
    spans: list[Span] = []
    now, written = 0.0, None
    kept = iter(_kept_fractions(list(lives.values()), resumes_at))
    for life, records in lives.items():
        began = records[0].at - records[0].total
        if written is not None and began > written:
            spans.append(Span(life, now, {"idle": began - written}))
            now += began - written
        written = records[-1].at
        for record in records:
            seconds, fraction = dict(record.seconds), next(kept)
            if (steps := seconds.get("step")) is not None and fraction < 1:
                seconds |= {"step": steps * fraction, "rolled_back": steps * (1 - fraction)}
            spans.append(Span(life, now, seconds))
            now += record.total
    return spans


def _kept_fractions(lives: Sequence[Sequence[Record]], resumes_at: int | None) -> list[float]:
    """Returns the fraction of each record's steps that were finished and not repeated."""
    fractions: list[float] = []
    # Backwards: steps after the limit are repeated by a later record.
    limit = math.inf if resumes_at is None else float(resumes_at)
    for life in reversed(lives):
        following, next_is_kept = None, False
        for record in reversed(life):
            if record.steps is None:
                fractions.append(1.0)
                continue
            first, last = record.steps
            if record.is_done:
                next_is_kept = limit >= last  # there is no unfinished step
            elif following != last:
                next_is_kept = False  # the life ends here, or rolls back
            if last > first:
                fractions.append(max(0.0, min(last, limit) - first) / (last - first))
                next_is_kept = limit > first
            else:  # the time went into the next step
                fractions.append(float(next_is_kept))
            limit, following = min(limit, first), first
    return fractions[::-1]


def _record(line: Mapping[str, Any]) -> Record | None:
    """Returns a record; None if the line is not one."""
    with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError, OverflowError):
        seconds = {name: float(line["seconds"][name]) for name in line["seconds"]}
        if not all(name in RECORDED and 0 <= s < math.inf for name, s in seconds.items()):
            return None
        steps = None
        if "steps" in line:
            first, last = map(int, line["steps"])
            steps = (first, max(first, last))
        return Record(
            float(line["at"]), seconds, steps, int(line.get("saves", 0)), bool(line.get("done"))
        )
    return None


def _restarts(folder: Path) -> dict[str, int]:
    entries = read_json_lines(folder / "events.jsonl")
    return dict(Counter(str(e.get("cause")) for e in entries if e.get("event") == "Restart"))


def _sum(spans: Iterable[Span]) -> dict[str, float]:
    totals = dict.fromkeys(CLASSES, 0.0)
    for span in spans:
        for name, seconds in span.seconds.items():
            totals[name] += seconds
    return totals


def _part(span: Span, begin: float, end: float = math.inf) -> Span:
    """Returns the part of a span between two times, as if its classes were evenly spread."""
    total = span.total
    length = min(end, span.begin + total) - max(begin, span.begin)
    part = max(0.0, length) / total if total else 0.0
    return Span(span.life, span.begin, {name: s * part for name, s in span.seconds.items()})


def _distinct(ranges: Iterable[tuple[int, int]]) -> int:
    """Returns how many different steps are in ranges (first, last]."""
    count, end = 0, 0
    for first, last in sorted(ranges):
        count += max(0, last - max(first, end))
        end = max(end, last)
    return count


def _fraction(seconds: Mapping[str, float]) -> float:
    wall = sum(seconds.values())
    return seconds["step"] / wall if wall > 0 else 0.0
