"""Requests to stop: a handled SIGTERM (preemption), SIGUSR1, SIGHUP or Ctrl-C, or a notice.

The step is finished, the state is saved, and the process exits. A second Ctrl-C exits at once.
`preemption.py` has the notices, for schedulers that cannot send a signal.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from dovetail.runtime.preemption import StopNotice

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

_STDERR = 2
_SECONDS_BETWEEN_POLLS = 1.0
_NOTICE = "finishing this step, then saving; Ctrl-C again exits at once\n"


class StopRequest:
    """Records a signal that asks to stop. It is a reentrant context manager."""

    def __init__(self) -> None:
        """Creates a request that nobody has made yet; a `with` block installs the handlers."""
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._depth = 0
        self._last_poll = 0.0

    def __enter__(self) -> Self:
        """Installs the handlers, in the main thread; Python delivers signals nowhere else."""
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def poll(self, folder: Path, notices: Iterable[StopNotice]) -> None:
        """Polls the notices for the run in a folder, about once per second."""
        if time.monotonic() - self._last_poll < _SECONDS_BETWEEN_POLLS:
            return
        self._last_poll = time.monotonic()
        for notice in notices:
            self.received = self.received or notice.poll(folder)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restores the previous handlers on the outermost exit."""
        self._depth -= 1
        if self._depth == 0:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._previous.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.received is not None:
                raise KeyboardInterrupt
            _write_stderr(_NOTICE)
        self.received = signal.Signals(number).name


def _write_stderr(line: str) -> None:
    """Bypasses Python's buffers: the signal may have interrupted a `print`."""
    start = "\n" if os.isatty(_STDERR) else ""  # below the live line and its ^C
    try:
        os.write(_STDERR, (start + line).encode())
    except OSError:
        return  # standard error is closed; stopping continues
