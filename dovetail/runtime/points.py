"""Named points at which `dovetail chaos` injects faults into a run. Otherwise they cost nothing.

A point is a call of `reach`, such as before a manifest is written. The environment variable
DOVETAIL_CHAOS names points, which time they are reached, and what happens then:

    save written@2=kill;restore read@1=sleep:3

Each fault happens once in a run, whatever its number of lives: a file in DOVETAIL_CHAOS_FOLDER
marks it. This module imports no JAX.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

FAULTS, FOLDER, PROCESS = "DOVETAIL_CHAOS", "DOVETAIL_CHAOS_FOLDER", "DOVETAIL_CHAOS_PROCESS"

POINTS = (
    "data prepared",
    "life taken",
    "restore begins",
    "restore read",
    "restore verified",
    "step compiled",
    "first step",
    "step",
    "save begins",
    "save copied",
    "save written",
    "save agreed",
    "manifest written",
    "manifest renamed",
    "save committed",
    "save verified",
    "checkpoint removed",
    "local save written",
    "local save copied to a peer",
    "local save committed",
    "run finished",
)
"""All points, in the order in which a run reaches them."""

_reached: Counter[str] = Counter()


def reach(name: str) -> None:
    """Says that a run has reached a point; injects the fault that is due there, if any."""
    faults = os.environ.get(FAULTS)
    if not faults:
        return
    assert name in POINTS, name
    if not _reached and "DOVETAIL_CHAOS_BREAK" in os.environ:
        from dovetail.runtime.chaos import broken

        broken.apply()
    if os.environ.get(PROCESS, "0") != os.environ.get("DOVETAIL_PROCESS", "0"):
        return
    _reached[name] += 1
    for fault in faults.split(";"):
        where, _, action = fault.partition("=")
        point, _, number = where.partition("@")
        if point == name and int(number or 1) == _reached[name] and _is_first(fault):
            _inject(action)


def _is_first(fault: str) -> bool:
    """Marks a fault as injected; returns False if it was before."""
    marker = Path(os.environ[FOLDER]) / f"injected {fault.replace('/', '-')}"
    try:
        with marker.open("x") as file:
            file.write(f"{time.time()}\n")
    except FileExistsError:
        return False
    return True


def _inject(action: str) -> None:
    """Does what a fault does."""
    kind, _, argument = action.partition(":")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "sleep":
        time.sleep(float(argument))
    elif kind == "gil":  # a call into C that does not release the GIL
        ctypes.PyDLL(None).sleep(int(argument or 600))
    elif kind == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    elif kind == "error":
        raise OSError(errno.EIO, "Input/output error")
    elif kind == "clock":  # what NTP or a person may do
        now = time.time
        time.time = lambda: now() + float(argument)
    elif kind == "remove":
        shutil.rmtree(Path(os.environ[FOLDER]) / "run", ignore_errors=True)
    elif kind == "segfault":
        ctypes.string_at(0)
    else:
        os.kill(os.getpid(), signal.Signals[kind])
