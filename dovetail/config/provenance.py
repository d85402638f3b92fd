"""Provenance: the file and line that set a value, and the modifiers it came through."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = str(Path(__file__).parent) + os.sep
_through: ContextVar[tuple[str, ...]] = ContextVar("through", default=())


@dataclass(frozen=True)
class Origin:
    """The line of code, or the command-line argument, that set a value."""

    file: str
    line: int
    through: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns `file:line`, or the user's argument, or both."""
        via = ", ".join(self.through)
        if not self.file:
            return via
        position = f"{_shorten(self.file)}:{self.line}"
        return f"{position} ({via})" if via else position


@contextmanager
def through(label: str) -> Iterator[None]:
    """Adds `label`, such as `--with moe`, to the origin of values that are set in this block."""
    token = _through.set((*_through.get(), label))
    try:
        yield
    finally:
        _through.reset(token)


def caller() -> Origin:
    """Returns the line of the nearest caller outside of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return Origin(frame.f_code.co_filename, frame.f_lineno, _through.get())


def typed_by_user(text: str) -> Origin:
    """Returns the origin of a value that the user typed."""
    return Origin("", 0, (*_through.get(), text))


def _shorten(file: str) -> str:
    """Returns a path relative to the package's parent or the working directory."""
    path = Path(file)
    for root in (Path(_PACKAGE).parents[1], Path.cwd()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return file
