"""Handlers of SIGTERM (preemption) and Ctrl-C: finish the step, save, exit.

A second Ctrl-C exits at once.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_STDERR = 2
_NOTICE = "finishing this step, then saving; Ctrl-C again exits at once\n"


class StopRequest:
    """Records a signal that asks to stop. It is a reentrant context manager."""

    def __init__(self) -> None:
        """No signal yet."""
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._depth = 0

    def __enter__(self) -> Self:
        """Installs the handlers, in the main thread; Python delivers signals nowhere else."""
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

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
