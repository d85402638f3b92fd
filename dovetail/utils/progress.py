"""The progress of long work, on standard error.

On a terminal one line is redrawn in place, from half a second on. Elsewhere each stage gets a plain
line, and then one every half minute. Work that is over in half a second shows nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from dovetail.utils.formatting import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.live import Live

_DELAY_SECONDS = 0.5
_BAR_WIDTH = 24

Render = Callable[[int | None], str]
"""Renders the line in at most this many characters; None means no limit."""


class Progress:
    """Shows what is being done, how far it is, and how long it has taken.

    Use it in a `with` statement. Its methods may be called from any thread.
    """

    def __init__(
        self, title: str = "", *, enabled: bool = True, seconds_between_lines: float = 30.0
    ) -> None:
        """Shows nothing yet.

        Args:
            title: begins every line.
            enabled: False for silence, as with `--json`.
            seconds_between_lines: how often a plain line is printed where there is no terminal.
        """
        self._title, self._enabled = title, enabled
        self._seconds_between_lines = seconds_between_lines
        self._stage, self._done, self._total, self._unit = "", 0, 0, ""
        self._began = self._stage_began = time.monotonic()
        self._announced: str | None = None
        self._last_line = 0.0
        self._render: Render | None = None
        self._live: Live | None = None
        self._spinner: Any = None
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._began = self._stage_began = time.monotonic()
        if self._enabled:
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes the line."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def silence(self) -> None:
        """Shows nothing from here on, as in a process of which another shows the progress."""
        self._enabled = False
        self.close()

    def stage(self, name: str, total: int = 0, unit: str = "") -> None:
        """Begins a stage.

        Args:
            name: what is done.
            total: how much of it there is; 0 where that is not known.
            unit: `bytes`, or nothing for tasks.
        """
        with self._lock:
            self._stage, self._done, self._total, self._unit = name, 0, total, unit
            self._stage_began = time.monotonic()
            waited = time.monotonic() - self._began >= _DELAY_SECONDS
            if self._enabled and waited and not sys.stderr.isatty():
                self._announce()

    def advance(self, amount: int = 1) -> None:
        """Adds to what is done of the stage."""
        self._done += amount

    def report(self, stage: str, done: int, total: int) -> None:
        """Says how many tasks of a stage are done, and begins the stage if it is a new one."""
        if stage != self._stage:
            self.stage(stage, total)
        self._done, self._total = done, total

    def show(self, render: Render, *, is_last: bool = False) -> None:
        """Shows a line in the caller's own words, instead of title and stage.

        Args:
            render: writes the line.
            is_last: prints it even if the last plain line was just now.
        """
        self._render = render
        if not self._enabled:
            return
        if sys.stderr.isatty():
            self._start_live()
        elif is_last or time.monotonic() - self._last_line >= self._seconds_between_lines:
            self._last_line = time.monotonic()
            self._print(render(None))

    def say(self, line: str) -> None:
        """Prints a line that stays."""
        if self._enabled:
            self._print(f"{self._title}: {line}" if self._title else line)

    def _run(self) -> None:
        if self._ended.wait(_DELAY_SECONDS):
            return
        if sys.stderr.isatty():
            self._start_live()  # Rich redraws it in a thread of its own
            return
        self._announce()
        while not self._ended.wait(self._seconds_between_lines):
            self._print(", ".join(self._pieces()))

    def _announce(self) -> None:
        """Prints title and stage, once."""
        with self._lock:
            if self._announced != self._stage:
                self._announced = self._stage
                self._print(self._label())

    def _print(self, line: str) -> None:
        with self._lock:
            if self._live is not None:
                self._live.console.print(line, highlight=False, markup=False)
            else:
                sys.stdout.flush()  # where both streams go to one file, lines stay in order
                print(line, file=sys.stderr, flush=True)

    def _start_live(self) -> None:
        with self._lock:
            if self._live is not None or self._ended.is_set():
                return
            from rich.console import Console
            from rich.live import Live
            from rich.spinner import Spinner

            self._spinner = Spinner("dots")
            self._live = Live(
                console=Console(stderr=True),
                refresh_per_second=4,
                transient=True,
                get_renderable=self._renderable,
            )
            self._live.start(refresh=True)

    def _renderable(self) -> Any:
        from rich.text import Text  # Rich would colour the numbers of a plain string

        def text(line: str) -> Text:
            return Text(line, no_wrap=True, overflow="ellipsis")

        width = self._live.console.width if self._live is not None else None
        if self._render is not None:
            return text(self._render(width))
        label, *pieces = self._pieces()
        if self._total:
            filled = round(min(1.0, self._done / self._total) * _BAR_WIDTH)
            label += "  " + "━" * filled + "╌" * (_BAR_WIDTH - filled)
        self._spinner.update(text=text("  ".join([label, *pieces])))
        return self._spinner

    def _label(self) -> str:
        return ": ".join(piece for piece in (self._title, self._stage) if piece)

    def _pieces(self) -> list[str]:
        """Returns title and stage, how far it is, and the times."""
        pieces = [self._label()]
        write = format_bytes if self._unit == "bytes" else "{:,}".format
        if self._total:
            pieces.append(f"{write(self._done)} of {write(self._total)}")
        elif self._done:
            pieces.append(write(self._done))
        pieces.append(format_duration(round(time.monotonic() - self._began)))
        spent = time.monotonic() - self._stage_began
        if self._total > self._done > 0 and spent > 2:
            left = spent * (self._total - self._done) / self._done
            pieces.append(f"{format_duration(max(1, round(left)))} left")
        return pieces
