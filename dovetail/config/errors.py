"""The exceptions for mistakes of users, and suggestions of the nearest names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 20  # names in a message


class Error(Exception):
    """The base class of every error that Dovetail explains: `except dovetail.Error`."""


class ConfigError(Error, ValueError):
    """The user's input is wrong; the message says what, where, and what to do next."""


class StorageError(Error):
    """A transient failure of a disk or an object store; a later try may succeed."""


class RunError(ConfigError):
    """A run folder cannot be used: it is none, is damaged, is newer, or needs a package."""


def nearest(name: str, known: Iterable[str], count: int = 3, cutoff: float = 0.5) -> list[str]:
    """Returns the known names that are most similar to `name`, best first."""
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=cutoff)
    return [lowered[match] for match in close]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns advice for an unknown name: the nearest known names, or a list of them."""
    names = sorted(known)
    close = nearest(name, names)
    if close:
        return f"Did you mean {' or '.join(repr(match) for match in close)}?"
    if not names:
        return "There is none to choose from."
    shown = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    return f"Known: {shown}."
