"""What a process of a run does now: told once, for the supervisor's watchdog and the goodput log.

This module imports no JAX.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from dovetail.runtime.goodput.log import GoodputLog
from dovetail.runtime.heartbeat import Heartbeat

# The watchdog has a limit for each. Waiting for input or for peers is bounded by what is around it.
_WATCHED = ("compile", "restore", "save", "evaluate", "check")


class Phases:
    """Passes phases and steps on to the heartbeat and the goodput log."""

    def __init__(self, index: int = 0, started: float | None = None) -> None:
        """Begins in the phase `start`; `started` is when that was, on the monotonic clock."""
        self._heartbeat, self._log = Heartbeat(index), GoodputLog(started)
        self._index = index

    def __enter__(self) -> Self:
        """Begins to send heartbeats."""
        self._heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends both."""
        self._heartbeat.__exit__()
        self._log.close()

    def open(self, folder: Path, life: int) -> None:
        """Begins to record in a run folder."""
        self._heartbeat.tell(folder=str(folder.absolute()))
        self._log.open(folder, life, self._index)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Says what goes on in a block: `compile`, `save` and the other classes of time."""
        watched: Any = contextlib.nullcontext()
        if name in _WATCHED:
            watched = self._heartbeat.phase(name)
        with self._log.during(name), watched:
            yield

    @contextlib.contextmanager
    def steps(self, first: int) -> Iterator[None]:
        """Says that a block runs steps, of which `first` were done before."""
        self._heartbeat.reached(first)
        with self._log.steps(first):
            yield

    def warn(self, message: str) -> None:
        """Tells the supervisor of something that a person should know; it alerts once."""
        self._heartbeat.tell(warning=message)

    def reached(self, step: int) -> None:
        """Says that a step is done."""
        self._heartbeat.reached(step)
        self._log.reached(step)

    def goodput(self) -> float:
        """Returns the productive fraction of the run until now."""
        return self._log.fraction()
