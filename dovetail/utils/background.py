"""Calls in the background."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

_exit_code: int | None = None


def set_exit_code(code: int) -> None:
    """Says with which code the process will exit, so that it need not wait for abandoned calls."""
    global _exit_code  # noqa: PLW0603  # an exit handler is not told the code
    _exit_code = code


class BackgroundCall:
    """A call in a thread that does not keep the process alive, unlike one of a pool."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Starts the call."""
        self._function, self._arguments = function, arguments
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001  # raised by result()
            self._error = error

    def done(self, seconds: float) -> bool:
        """Waits for a while, and returns whether the call has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Lets the process exit while the call is running, if `set_exit_code` was called.

        Otherwise the exit waits for the call: if Python ends a thread in compiled code, the process
        aborts.
        """
        atexit.register(_exit_or_wait, self._thread)  # the call itself may hold a whole run

    def result(self) -> Any:
        """Waits for the end, and returns the result or raises the error of the call."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


def _exit_or_wait(thread: threading.Thread) -> None:
    if thread.is_alive() and _exit_code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)
    thread.join()


def skip_exit_handlers(seconds: float = 0.0) -> None:
    """Ends the process, once it exits, before the exit handlers that were registered earlier.

    Args:
        seconds: how long to wait first.
    """
    atexit.register(_exit_now, seconds)


def _exit_now(seconds: float) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(seconds)
    os._exit(1 if _exit_code is None else _exit_code)
