"""Something that takes minutes and cannot say how far it is: a clock that runs meanwhile."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.cli.output import say

_QUIET_SECONDS = 30.0


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Shows that work goes on: a clock on a terminal, now and then a line elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            bar.add_task(what, total=None)
            yield
        return
    ended = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, ended), daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def _tell(what: str, ended: threading.Event) -> None:
    start = time.monotonic()
    while not ended.wait(_QUIET_SECONDS):
        say(f"{what}: {time.monotonic() - start:.0f} s")
