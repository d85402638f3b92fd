"""The one exception that a user's mistake raises, and the help it carries."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LISTED = 20  # a longer list helps nobody


class ConfigError(ValueError):
    """What the user wrote is wrong; the message says what, where, and what to do next."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Returns the known names that look most like `name`, best first."""
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=count, cutoff=0.5)
    return [lowered[match] for match in close]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns advice for an unknown name: the nearest ones, or all there are."""
    names = sorted(known)
    close = nearest(name, names)
    if close:
        return f"Did you mean {' or '.join(repr(match) for match in close)}?"
    if not names:
        return "There is none to choose from."
    shown = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    return f"Known: {shown}."
