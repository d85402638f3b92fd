"""Progress of work that is counted in tasks: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dovetail.cli.output import say

_QUIET_SECONDS = 30.0

Told = Callable[[str, int, int], None]


@contextmanager
def tally(title: str) -> Iterator[Told]:
    """Gives a function that is told the stage, and how many of how many tasks are done."""
    if sys.stderr.isatty():
        with _bar(title) as tell:
            yield tell
    else:
        yield _lines(title)


def _lines(title: str) -> Told:
    last: dict[str, float] = {}

    def tell(stage: str, done: int, total: int) -> None:
        ended = done == total
        if ended or time.monotonic() - last.get(stage, -_QUIET_SECONDS) >= _QUIET_SECONDS:
            last[stage] = time.monotonic()
            say(f"{title}: {stage}, {done:,} of {total:,}")

    return tell


@contextmanager
def _bar(title: str) -> Iterator[Told]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title)
        shown = ""

        def tell(stage: str, done: int, total: int) -> None:
            nonlocal shown
            if stage != shown:
                shown = stage
                bar.reset(task, description=f"{title}: {stage}", total=total)
            bar.update(task, completed=done)

        yield tell
