"""Stopping on Ctrl-C or SIGTERM: finish the step, save, leave. A second Ctrl-C leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_STDERR = 2
_PROMISE = "finishing this step, then saving; Ctrl-C again leaves at once\n"


class StopRequest:
    """Remembers that a signal asked us to stop. May be entered again while it listens."""

    def __init__(self) -> None:
        """No signal yet."""
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._depth = 0

    def __enter__(self) -> Self:
        """Listens, in the main thread (Python delivers signals nowhere else)."""
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
        """Gives the signals back, to those who had them before the outermost entry."""
        self._depth -= 1
        if self._depth == 0:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._previous.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.received is not None:
                raise KeyboardInterrupt
            _tell(_PROMISE)
        self.received = signal.Signals(number).name


def _tell(line: str) -> None:
    """Writes past Python's buffers: the signal may have come in the middle of a `print`."""
    start = "\n" if os.isatty(_STDERR) else ""  # below the live line, and the ^C on it
    try:
        os.write(_STDERR, (start + line).encode())
    except OSError:
        return  # nobody reads any more; stopping must go on
