"""Where a value came from: the file and line that set it, and what it came through."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

_HERE = str(Path(__file__).parent) + os.sep
_through: ContextVar[tuple[str, ...]] = ContextVar("through", default=())


@dataclass(frozen=True)
class Origin:
    """The line of code (or command-line word) that set a value."""

    file: str
    line: int
    through: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Shows `file:line`, or the words the user typed, or both."""
        via = ", ".join(self.through)
        if not self.file:
            return via
        place = f"{_shorten(self.file)}:{self.line}"
        return f"{place} ({via})" if via else place


@contextmanager
def through(label: str) -> Iterator[None]:
    """Marks values set inside this block as having come through `label`, such as a modifier."""
    token = _through.set((*_through.get(), label))
    try:
        yield
    finally:
        _through.reset(token)


def here() -> Origin:
    """Returns the origin of the nearest caller that stands outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return Origin(frame.f_code.co_filename, frame.f_lineno, _through.get())


def typed_by_user(text: str) -> Origin:
    """Returns the origin of a value that the user typed."""
    return Origin("", 0, (*_through.get(), text))


def _is_internal(filename: str) -> bool:
    return filename.startswith(_HERE)


def _shorten(file: str) -> str:
    """Shows package files from the package on, and other files relative to the working folder."""
    package = Path(_HERE).parent
    path = Path(file)
    for root in (package.parent, Path.cwd()):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return file
