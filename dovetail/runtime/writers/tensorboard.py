"""Metrics as TensorBoard event files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dovetail.config import Component
from dovetail.runtime.writers.base import Metrics

_SECONDS_BETWEEN_FLUSHES = 5.0


class TensorBoard(Component):
    """Writes TensorBoard event files.

    It does not use tensorboardX's SummaryWriter, whose own thread dies of a full disk. Then its
    queue blocks every write, the close and the exit of the process. Here an error reaches the
    caller, and the next `open` starts another file.
    """

    def open(self, folder: Path, first_step: int) -> None:
        """Takes the folder; the first write creates the file, because the library loads slowly."""
        self._folder, self._first_step = folder / "tensorboard", first_step
        self._events: Any = None
        self._last_flush = 0.0

    def write(self, step: int, metrics: Metrics) -> None:
        """Adds scalars and texts."""
        from tensorboardX import summary

        if self._events is None:
            self._events = self._new_file()
        for name, value in metrics.items():
            make = summary.text if isinstance(value, str) else summary.scalar
            self._add(step, summary=make(name, value))
        if time.monotonic() - self._last_flush >= _SECONDS_BETWEEN_FLUSHES:
            self._last_flush = time.monotonic()
            self._events.flush()

    def close(self) -> None:
        """Flushes the events."""
        if self._events is not None:
            events, self._events = self._events, None
            events.close()

    def _new_file(self) -> Any:
        """Starts a file that makes readers drop later steps of other files."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        self._folder.mkdir(exist_ok=True)
        # Two files within a second, as after a rollback, must have two names.
        self._events = EventsWriter(str(self._folder / "events"), f".{time.monotonic_ns()}")
        self._add(self._first_step + 1, session_log=SessionLog(status=SessionLog.START))
        return self._events

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._events.write_event(Event(step=step, wall_time=time.time(), **content))
