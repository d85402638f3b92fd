"""Printing for people and for machines."""

from __future__ import annotations

import json
import sys
from typing import Any

# Beyond a trillion people count nothing but operations, and say peta and exa.
_COUNTS = {"E": 10**18, "P": 10**15, "T": 10**12, "B": 10**9, "M": 10**6, "k": 10**3}


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    print(json.dumps(value, indent=2, default=str))


def say(line: str) -> None:
    """Prints a line for people, on standard error, so that standard output stays clean.

    Where both go to one place they come in order: Python would hold standard output back there.
    """
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)


def count(number: int) -> str:
    """Writes a large number the way people say it."""
    for unit, size in _COUNTS.items():
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def size(number: float) -> str:
    """Writes a number of bytes the way people say it."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f} B"
