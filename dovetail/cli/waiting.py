"""Something that takes minutes and cannot say how far it is: a clock that runs meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dovetail.cli.output import say

_QUIET_SECONDS = 30.0


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Shows that work goes on: a clock on a terminal, now and then a line elsewhere.

    Gives a function that is told what is being done now.
    """
    if sys.stderr.isatty():
        with _clock(what) as tell:
            yield tell
        return
    teller = _Teller(what)
    teller.start()
    try:
        yield teller.told
    finally:
        teller.ended.set()
        teller.join()


@contextmanager
def _clock(what: str) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda now: bar.update(task, description=f"{what}: {now}")


class _Teller(threading.Thread):
    """Says a line when something new is begun, and then every half minute."""

    def __init__(self, what: str) -> None:
        super().__init__(daemon=True)
        self.what, self.now, self.ended = what, "", threading.Event()

    def told(self, now: str) -> None:
        self.now = f": {now}"
        say(f"{self.what}{self.now}")

    def run(self) -> None:
        start = time.monotonic()
        say(self.what)
        while not self.ended.wait(_QUIET_SECONDS):
            say(f"{self.what}{self.now}, {time.monotonic() - start:.0f} s")
