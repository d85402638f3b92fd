"""Named points at which `dovetail chaos` injects faults into a run. Otherwise they cost nothing.

A point is a call of `reach`, such as before a manifest is written, or of `pass_through`, where a
value can be damaged. The environment variable DOVETAIL_CHAOS names points, the count at which
each triggers, and the action:

    save written@2=kill;restore read@1=sleep:3

Each fault strikes once in a run, however many lives it has: a file in DOVETAIL_CHAOS_FOLDER marks
it. This module imports no JAX.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

FAULTS, FOLDER, PROCESS = "DOVETAIL_CHAOS", "DOVETAIL_CHAOS_FOLDER", "DOVETAIL_CHAOS_PROCESS"
TIMES = "times.txt"
"""The file in that folder with the times at which `_TIMED` points were reached."""

POINTS = (
    "data begins",
    "data prepared",
    "life taken",
    "restore begins",
    "restore read",
    "restore verified",
    "compile begins",
    "step compiled",
    "first step",
    "step",
    "batch",
    "state",
    "save begins",
    "save copied",
    "save written",
    "save agreed",
    "save synced",
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

_TIMED = ("life taken", "first step", "save verified")

_reached: Counter[str] = Counter()


def reach(name: str) -> None:
    """Marks a point of the run; injects the fault that is due, if any."""
    if FAULTS in os.environ:
        for action in _due(name):
            _inject(action, None)


def pass_through(name: str, value: T) -> T:
    """Marks a point with a value; returns the value, which a due fault may damage."""
    if FAULTS in os.environ:
        for action in _due(name):
            value = _inject(action, value)
    return value


def _due(name: str) -> Iterator[str]:
    """Yields the actions that are due at a point now."""
    assert name in POINTS, name
    if not _reached and "DOVETAIL_CHAOS_BREAK" in os.environ:
        from dovetail.runtime.chaos import broken

        broken.apply()
    _reached[name] += 1
    if name in _TIMED:
        with (Path(os.environ[FOLDER]) / TIMES).open("a") as file:
            file.write(f"{time.monotonic()} {name}\n")
    if os.environ.get(PROCESS, "0") != os.environ.get("DOVETAIL_PROCESS", "0"):
        return
    for fault in os.environ[FAULTS].split(";"):
        where, _, action = fault.partition("=")
        point, _, number = where.partition("@")
        if point == name and int(number or 1) == _reached[name] and _is_first(fault):
            yield action


def _is_first(fault: str) -> bool:
    """Marks a fault as injected; returns False if it already was."""
    marker = Path(os.environ[FOLDER]) / f"injected {fault.replace('/', '-')}"
    try:
        with marker.open("x") as file:
            file.write(f"{time.monotonic()} {time.time()}\n")
    except FileExistsError:
        return False
    return True


def _inject(action: str, value: Any) -> Any:
    from dovetail.runtime.chaos.actions import inject

    return inject(action, value)
