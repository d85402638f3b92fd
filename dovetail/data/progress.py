"""Progress of long work: silent at first, a bar on a terminal, a plain line a stage elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import rich.progress

_PATIENCE_SECONDS = 2.0


class Progress:
    """Shows the stages of a piece of work on standard error once it takes longer than 2 s."""

    def __init__(self, title: str, enabled: bool = True) -> None:
        """Starts the clock; shows nothing yet."""
        self._title = title
        self._enabled = enabled
        self._started = time.monotonic()
        self._stage, self._total, self._done = "", 0, 0
        self._announced = ""
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    def stage(self, name: str, total: int) -> None:
        """Begins a stage of `total` units (bytes)."""
        self._stage, self._total, self._done = name, total, 0
        if self._bar is not None and self._task is not None:
            self._bar.reset(self._task, description=f"{self._title}: {name}", total=total)
        self._show()

    def advance(self, amount: int) -> None:
        """Says that so many units more are done."""
        self._done += amount
        self._show()

    def say(self, message: str) -> None:
        """Prints a line at once."""
        if self._enabled:
            print(f"{self._title}: {message}", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        """Lets the work begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        if not self._enabled or time.monotonic() - self._started < _PATIENCE_SECONDS:
            return
        if not sys.stderr.isatty():
            if self._announced != self._stage:
                self._announced = self._stage
                self.say(self._stage)
            return
        if self._bar is None or self._task is None:
            self._bar, self._task = self._start_bar()
        self._bar.update(self._task, completed=self._done)

    def _start_bar(self) -> tuple[rich.progress.Progress, rich.progress.TaskID]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        text = TextColumn("{task.description}")
        columns = (SpinnerColumn(), text, BarColumn(), DownloadColumn(), TimeRemainingColumn())
        bar = Bar(*columns, console=Console(stderr=True), transient=True)
        task = bar.add_task(f"{self._title}: {self._stage}", total=self._total)
        bar.start()
        return bar, task
