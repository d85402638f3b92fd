"""Metrics writers in threads: a slow or broken writer can neither stop nor stall training.

Each writer has a thread and a bounded queue. Metrics that do not fit are dropped. A writer that
fails is muted with one message, and tried again after a while. The run ends without a writer that
never answers: tensorboardX, for example, waits forever on its own queue after a full disk. A closed
writer has no thread, because a notebook trains many times in one process.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dovetail.runtime.writers.base import Metrics, MetricsWriter

_LOG = logging.getLogger("dovetail")
_QUEUED = 1000
_SECONDS_MUTED = 30.0
_SECONDS_TO_CLOSE = 10.0


class BackgroundWriter:
    """A writer whose calls return at once."""

    def __init__(
        self,
        name: str,
        writer: MetricsWriter,
        *,
        queued: int = _QUEUED,
        seconds_muted: float = _SECONDS_MUTED,
        seconds_to_close: float = _SECONDS_TO_CLOSE,
    ) -> None:
        """Starts nothing yet.

        Args:
            name: the name of the writer, for messages.
            writer: does the work; all its methods are called in one thread.
            queued: how many calls may wait.
            seconds_muted: when a writer that failed is tried again.
            seconds_to_close: how long to wait for the writer at the end.
        """
        self._name, self._writer = name, writer
        self._seconds_muted, self._seconds_to_close = seconds_muted, seconds_to_close
        self._queue: queue.Queue[Callable[[], None]] = queue.Queue(queued)
        self._muted_until: float | None = None
        self._lost, self._is_behind = 0, False
        self._folder, self._newest = Path(), 0
        self._lock = threading.Lock()
        """Nothing is queued between the decision of the thread to end and its end."""
        self._thread: threading.Thread | None = None
        self._closed = False

    def open(self, folder: Path, first_step: int) -> None:
        """Starts, or continues after a restore or a rollback."""
        with self._lock:
            self._closed = False
            self._put(lambda: self._open(folder, first_step))
            if self._thread is None:
                name = f"dovetail-writer-{self._name}"
                self._thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._thread.start()

    def write(self, step: int, metrics: Metrics) -> None:
        """Writes the metrics of a step, some time later."""
        self._put(lambda: self._write(step, metrics))

    def close(self) -> None:
        """Waits until all is written, or until a writer that does not answer has timed out."""
        with self._lock:
            thread, self._closed = self._thread, True
            if thread is None:  # it was never opened
                return
            self._put(lambda: self._attempt(self._writer.close))
        thread.join(self._seconds_to_close)
        if thread.is_alive():
            _LOG.warning(
                "The writer %r does not answer; about %d of its metrics are lost.",
                self._name,
                self._queue.qsize() + self._lost,
            )

    def _put(self, call: Callable[[], None]) -> None:
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            self._lost += 1
            if not self._is_behind:
                _LOG.warning("The writer %r is too slow; metrics are dropped.", self._name)
            self._is_behind = True

    def _work(self) -> None:
        """Makes the calls, until the writer is closed and none is left."""
        while True:
            self._queue.get()()
            with self._lock:
                if self._closed and self._queue.empty():
                    self._thread = None
                    return

    def _open(self, folder: Path, first_step: int) -> None:
        self._folder, self._newest = folder, first_step
        self._attempt(lambda: self._writer.open(folder, first_step))

    def _write(self, step: int, metrics: Metrics) -> None:
        if self._muted_until is not None:
            if time.monotonic() < self._muted_until:
                self._lost += 1
                return
            self._revive()
        if self._muted_until is not None:
            self._lost += 1
            return
        self._attempt(lambda: self._writer.write(step, metrics))
        if self._muted_until is None:
            self._newest = step

    def _revive(self) -> None:
        """Opens the writer again at the newest step."""
        try:
            self._writer.open(self._folder, self._newest)
        except Exception:  # noqa: BLE001  # said before
            self._muted_until = time.monotonic() + self._seconds_muted
            return
        self._muted_until = None
        _LOG.warning(
            "The writer %r works again; %d of its metrics are lost.", self._name, self._lost
        )

    def _attempt(self, call: Callable[[], None]) -> None:
        """Calls the writer; if it fails, mutes it."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # no writer may stop training
            if self._muted_until is None:
                _LOG.warning(
                    "The writer %r failed: %s. Training continues, and the writer is tried again "
                    "after %.0f s.",
                    self._name,
                    error,
                    self._seconds_muted,
                )
            self._muted_until = time.monotonic() + self._seconds_muted
