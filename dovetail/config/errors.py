"""The exceptions for mistakes of users, and suggestions of the nearest names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 20  # names in a message
_OPTION_CUTOFF = 0.7


class Error(Exception):
    """The base class of every error that Dovetail explains: `except dovetail.Error`."""


class ConfigError(Error, ValueError):
    """The user's input is wrong; the message says what, where, and what to do next."""


class StorageError(Error):
    """A transient failure of a disk or an object store; a later try may succeed."""


class RunError(ConfigError):
    """A folder cannot be used as a run: wrong kind, damaged, newer version, or missing package."""


def nearest(name: str, known: Iterable[str], count: int = 3, cutoff: float = 0.5) -> list[str]:
    """Returns the known names that are most similar to `name`, best first.

    An option (`--steps`) is compared without its dashes, and must be nearer: options are short
    words, many of which share half of their letters.
    """
    if name.startswith("-"):
        cutoff = max(cutoff, _OPTION_CUTOFF)
    plain = {candidate.lower().lstrip("-"): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower().lstrip("-"), plain, n=count, cutoff=cutoff)
    return [plain[match] for match in close]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns advice for an unknown name: the nearest known names, or a list of them."""
    names = sorted(known)
    close = nearest(name, names)
    if close:
        return f"Did you mean {' or '.join(repr(match) for match in close)}?"
    if not names:
        return "There is none to choose from."
    if len(names) > _LISTED:
        return f"Known: {', '.join(names[:_LISTED])}, ..."
    return f"Known: {', '.join(names)}."
