"""The goodput log: the time of a process by class, one file per process and life.

`goodput/000003-0.jsonl` is the log of process 0 in life 3. A line covers the time since the line
before it, with the seconds of each class and the steps that were done:

    {"at": 1794960000.123, "seconds": {"step": 0.98, "input": 0.02}, "steps": [100, 104]}

Invariants:
- Durations come from the monotonic clock, so setting the clock does not change them. `at` only
  measures the time between two lives.
- A thread writes. Training never waits for the disk. If the disk is full, a later line has the
  seconds that could not be written.
- A line is written every tenth of a second at first, then every thousandth of the life's age. A
  kill loses at most that much. A life of 54 days has about 12,000 lines.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dovetail.runtime.goodput.account import Lives, Record, read_lives, timeline
from dovetail.runtime.goodput.classes import CLASSES, RECORDED

_LOG = logging.getLogger("dovetail")
_SECONDS_BETWEEN_LINES = 0.1
_PART_OF_AGE = 1e-3
_SECONDS_TO_CLOSE = 5.0


class GoodputLog:
    """The stopwatch of one process in one life. At any time it is in one class."""

    def __init__(self, started: float | None = None) -> None:
        """Starts in the class `start`, at the time `started` of the monotonic clock."""
        self._began = self._charged = time.monotonic() if started is None else started
        self._class = "start"
        self._steps: tuple[int, int] | None = None
        self._seconds = dict.fromkeys(RECORDED, 0.0)
        self._saves = 0
        self._past: Lives = {}
        self._own: list[Record] = []
        self._unwritten: list[Record] = []
        # Seconds by class, until the last resumption and since then.
        self._before, self._since = _no_seconds(), _no_seconds()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, folder: Path, life: int, process: int = 0) -> None:
        """Starts to write in a run folder; the first line has the time until now."""
        self._life = life
        with contextlib.suppress(OSError):  # only process 0 says what the fraction is
            self._past = read_lives(folder, before=life) if process == 0 else {}
        file = _LogFile(folder / "goodput" / f"{life:06d}-{process}.jsonl")
        self._thread = threading.Thread(target=self._write, args=[file], name="dovetail-goodput")
        self._thread.daemon = True
        self._thread.start()

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Charges the time of a block to a class of `RECORDED`."""
        before = self._enter(name)
        with self._lock:
            self._saves += name == "save"
        try:
            yield
        finally:
            self._enter(before)

    @contextlib.contextmanager
    def steps(self, first: int) -> Iterator[None]:
        """Charges the time of a block to steps; `first` steps were done before."""
        self._resume(first)
        with self.during("step"):
            yield
        with self._lock:  # not after an error: steps that were begun are lost then
            self._finish_record(is_done=True)

    def reached(self, step: int) -> None:
        """Records that a step is done."""
        with self._lock:
            if self._steps is not None:
                self._steps = (self._steps[0], step)

    def fractions(self) -> dict[str, float]:
        """Returns the share of each class in the run until now, with its earlier lives."""
        with self._lock:
            self._charge()
            seconds = {name: self._before[name] + self._since[name] for name in CLASSES}
        wall = sum(seconds.values())
        return {name: value / wall for name, value in seconds.items() if value > 0}

    def close(self) -> None:
        """Writes the rest; waits only briefly for a disk that hangs."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=_SECONDS_TO_CLOSE)

    def _enter(self, name: str) -> str:
        with self._lock:
            self._charge()
            before, self._class = self._class, name
        return before

    def _charge(self) -> None:
        """Charges the time since the last charge to the class."""
        now = time.monotonic()
        self._seconds[self._class] += now - self._charged
        self._since[self._class] += now - self._charged
        self._charged = now

    def _resume(self, first: int) -> None:
        """Recomputes the productive time: steps after `first` are about to be repeated."""
        with self._lock:
            self._finish_record()
            self._before, self._since = _no_seconds(), _no_seconds()
            for span in timeline({**self._past, self._life: self._own}, resumes_at=first):
                for name, value in span.seconds.items():
                    self._before[name] += value
            self._steps = (first, first)

    def _finish_record(self, is_done: bool = False) -> None:
        self._charge()
        seconds = {name: value for name, value in self._seconds.items() if value > 0}
        record = Record(time.time(), seconds, self._steps, self._saves, is_done)
        self._seconds = dict.fromkeys(RECORDED, 0.0)
        self._saves = 0
        if self._steps is not None:
            self._steps = (self._steps[1], self._steps[1])
        self._own.append(record)
        self._unwritten.append(record)

    def _write(self, file: _LogFile) -> None:
        """Writes lines until the end. If a write fails, the record stays open."""
        has_warned = False
        while True:
            has_ended = self._ended.is_set()
            with self._lock:
                if not self._unwritten or has_ended:
                    self._finish_record()
            try:
                while self._unwritten:
                    file.append(_line(self._unwritten[0]))
                    del self._unwritten[0]
            except OSError as error:
                if not has_warned:
                    _LOG.warning("%s: %s. Training continues.", file.path, error.strerror)
                has_warned = True
            if has_ended:
                return file.close()
            age = time.monotonic() - self._began
            self._ended.wait(max(_SECONDS_BETWEEN_LINES, age * _PART_OF_AGE))


def _no_seconds() -> dict[str, float]:
    return dict.fromkeys(CLASSES, 0.0)


class _LogFile:
    """A file to which lines are appended, each complete or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._is_torn = False

    def append(self, line: bytes) -> None:
        """Appends a line. After a failure, call it again with the same line."""
        if self._descriptor is None:
            self.path.parent.mkdir(exist_ok=True)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        whole = b"\n" + line if self._is_torn else line
        written = os.write(self._descriptor, whole)
        self._is_torn = written < len(whole)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def _line(record: Record) -> bytes:
    entry: dict[str, Any] = {
        "at": round(record.at, 3),
        "seconds": {name: round(value, 6) for name, value in record.seconds.items()},
    }
    if record.steps is not None:
        entry["steps"] = record.steps
    if record.saves:
        entry["saves"] = record.saves
    if record.is_done:
        entry["done"] = True
    return (json.dumps(entry) + "\n").encode()
