"""Actions of faults in the process that reaches a point (`runtime/points.py`).

An action is a word, with an optional argument: `kill`, `sleep:3`, or the name of a signal.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.runtime.chaos.surroundings import DISK
from dovetail.runtime.points import FOLDER


def inject(action: str, value: Any) -> Any:
    """Runs the action of a fault; returns the value at the point, which the action may damage."""
    kind, _, argument = action.partition(":")
    if kind in ("nan", "flip"):
        from dovetail.runtime.chaos import values

        if kind == "nan":
            return values.nan_batch(value)
        return values.flipped_bit(value, int(argument or values.MANTISSA_BIT))
    if kind in _ACTIONS:
        _ACTIONS[kind](argument)
    else:
        os.kill(os.getpid(), signal.Signals[kind])
    return value


def _kill(argument: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _kill_later(seconds: str) -> None:
    """Kills in the middle of what follows the point."""
    timer = threading.Timer(float(seconds), _kill, [""])
    timer.daemon = True
    timer.start()


def _hold_gil(argument: str) -> None:
    """Calls into C, without releasing the GIL."""
    ctypes.PyDLL(None).sleep(int(argument or 600))


def _fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def _move_clock(seconds: str) -> None:
    """Sets the clock, as NTP or a person may do."""
    now = time.time
    time.time = lambda: now() + float(seconds)


def _remove_run(argument: str) -> None:
    shutil.rmtree(Path(os.environ[FOLDER]) / "run", ignore_errors=True)


def _fill_disk(seconds: str) -> None:
    """Writes until the small disk is full, and frees it after a while."""
    file, size = Path(os.environ[FOLDER]) / DISK / "filler", 2**20
    with file.open("wb", buffering=0) as stream:
        while size:
            try:
                stream.write(bytes(size))
            except OSError:
                size //= 2
    _later(seconds, "rm", "-f", str(file))


def _cut_network(seconds: str) -> None:
    """Drops all packets between the processes of a network namespace, for a while."""
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    _later(seconds, "ip", "link", "set", "lo", "up")


def _later(seconds: str, *command: str) -> None:
    """Runs a command after some seconds, in a process that outlives this one."""
    words = ["sh", "-c", 'sleep "$0"; exec "$@"', seconds, *command]
    subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)


_ACTIONS: dict[str, Callable[[str], object]] = {
    "kill": _kill,
    "later": _kill_later,
    "stop": lambda argument: os.kill(os.getpid(), signal.SIGSTOP),
    "sleep": lambda argument: time.sleep(float(argument)),
    "gil": _hold_gil,
    "full": lambda argument: _fail(errno.ENOSPC),
    "error": lambda argument: _fail(errno.EIO),
    "clock": _move_clock,
    "remove": _remove_run,
    "fill": _fill_disk,
    "cut": _cut_network,
    "segfault": lambda argument: ctypes.string_at(0),
}
