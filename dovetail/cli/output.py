"""Printing for people and for machines."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError

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


def check_file(flag: str, file: Path) -> None:
    """Raises a ConfigError for a file that cannot be written, before there is work in vain."""
    if file.is_dir():
        raise ConfigError(f"{flag} {file}: that is a folder. Name a file in it.")
    if not file.parent.is_dir():
        raise ConfigError(f"{flag} {file}: there is no folder {file.parent}. Make it first.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"{flag} {file}: this must not be written to. Name another file.")


def check_folder(flag: str, folder: Path) -> None:
    """Raises a ConfigError for a folder that cannot be made, before there is work in vain."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"{flag} {folder}: {there} is a file. Name a folder.")
    if not os.access(there, os.W_OK):
        raise ConfigError(f"{flag} {folder}: {there} must not be written to. Name another folder.")


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
