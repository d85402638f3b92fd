"""Printing for people and for machines."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError
from dovetail.utils import format_number, format_table


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output; NaN and infinity, which JSON lacks, as null."""
    print(json.dumps(_json_value(value), indent=2, default=str, allow_nan=False))


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say(line: str) -> None:
    """Prints a line for people, on standard error, so that standard output stays clean.

    Standard output is flushed first, so that both are in order in one file or pipe.
    """
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)


def format_metrics(metrics: Mapping[str, float | int | str]) -> str:
    """Returns texts, such as samples, and below them the numbers as a table."""
    texts = [f"--- {name}\n{value}" for name, value in metrics.items() if isinstance(value, str)]
    numbers = [(name, format_number(v)) for name, v in metrics.items() if not isinstance(v, str)]
    return "\n\n".join([*texts, *([format_table(numbers)] if numbers else [])])


@contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """Names the option, as it is typed, where a ConfigError begins with the name of an argument."""
    try:
        yield
    except ConfigError as error:
        argument = re.match(r"\w+", str(error))
        if argument is None or argument[0] not in options:
            raise
        raise ConfigError(options[argument[0]] + str(error)[argument.end() :]) from error


def check_number(flag: str, value: float | None, low: float, high: float = math.inf) -> None:
    """Raises a ConfigError, which names the option, for a number outside of its range."""
    if value is not None and not low <= value <= high:
        wanted = f"{low:,} or more" if high == math.inf else f"{low:,} to {high:,}"
        raise ConfigError(f"{flag}: expected {wanted}, got {value:,}.")


def check_file(flag: str, file: Path) -> None:
    """Raises a ConfigError for a file that cannot be written, before any work is done."""
    if file.is_dir():
        raise ConfigError(f"{flag} {file}: that is a folder. Name a file in it.")
    if not file.parent.is_dir():
        raise ConfigError(f"{flag} {file}: there is no folder {file.parent}. Make it first.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"{flag} {file}: this is not writable. Name another file.")


def check_folder(flag: str, folder: Path) -> None:
    """Raises a ConfigError for a folder that cannot be created, before any work is done."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"{flag} {folder}: {there} is a file. Name a folder.")
    try:  # root may write everywhere, by its permissions, and yet not in /proc
        tempfile.TemporaryDirectory(dir=there).cleanup()
    except OSError as error:
        raise ConfigError(
            f"{flag} {folder}: nothing can be created in {there} ({error.strerror}). Name another "
            "folder."
        ) from error
