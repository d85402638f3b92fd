"""The current phase of a process, for the supervisor's watchdog and the goodput log.

This module imports no JAX.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from dovetail.runtime.goodput.log import GoodputLog
from dovetail.runtime.heartbeat import Heartbeat

# The watchdog limits each of these. Waiting for input or peers falls under the enclosing phase.
_WATCHED = ("compile", "restore", "save", "evaluate", "check")


class Phases:
    """Passes phases and steps on to the heartbeat and the goodput log."""

    def __init__(self, index: int = 0, started: float | None = None) -> None:
        """Begins in the phase `start`, at the time `started` of the monotonic clock."""
        self._heartbeat, self._log = Heartbeat(index), GoodputLog(started)
        self._index = index

    def __enter__(self) -> Self:
        """Starts to send heartbeats."""
        self._heartbeat.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the heartbeats and the log."""
        self._heartbeat.__exit__()
        self._log.close()

    def open(self, folder: Path, life: int) -> None:
        """Starts to record in a run folder."""
        self._heartbeat.send(folder=str(folder.absolute()))
        self._log.open(folder, life, self._index)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Records a block as a phase: `compile`, `save` or another class of time."""
        watched: Any = contextlib.nullcontext()
        if name in _WATCHED:
            watched = self._heartbeat.phase(name)
        with self._log.during(name), watched:
            yield

    @contextlib.contextmanager
    def steps(self, first: int) -> Iterator[None]:
        """Records a block that runs steps; `first` steps were done before."""
        self._heartbeat.reached(first)
        with self._log.steps(first):
            yield

    def warn(self, message: str) -> None:
        """Sends a warning to the supervisor, which alerts once."""
        self._heartbeat.send(warning=message)

    def halt(self, reason: str, restart_helps: bool) -> None:
        """Sends the supervisor the sentence with which the run ends, for its alert."""
        self._heartbeat.send(halt=reason, restart_helps=restart_helps)

    def reached(self, step: int) -> None:
        """Records that a step is done."""
        self._heartbeat.reached(step)
        self._log.reached(step)

    def goodput(self) -> dict[str, float]:
        """Returns metrics: the productive fraction of the run until now, and what took the rest."""
        fractions = self._log.fractions()
        badput = {f"badput/{name}": value for name, value in fractions.items() if name != "step"}
        return {"goodput": fractions.get("step", 0.0), **badput}
