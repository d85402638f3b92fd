"""The errors of chat data, and how they show an example.

A `ChatTemplateError` is about a template: no conversation can be trained with it. A
`ConversationError` is about one conversation; a corpus may count it as a bad record and go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.config import ConfigError

Span = tuple[int, int]
"""A half-open range of characters."""

_SHOWN = 240  # characters at each end of a piece of an example


class ChatTemplateError(ConfigError):
    """A chat template that cannot be used, with the reason and what to do."""


class ConversationError(ConfigError):
    """A conversation that cannot be trained on with a template, with the reason."""


def show(text: str, answers: Sequence[Span]) -> str:
    """Returns an example on one line, with `>>>` and `<<<` around answers; long ones are cut."""
    pieces, at = [], 0
    for start, end in answers:
        pieces += [_quoted(text[at:start]), ">>>", _quoted(text[start:end]), "<<<"]
        at = end
    return "".join([*pieces, _quoted(text[at:])])


def show_difference(expected: str, found: str) -> str:
    """Returns where two texts part, with what each has there."""
    at = common_length(expected, found)
    return (
        f"after {_tail(found[:at])} the prompt goes on with {_head(expected[at:])}, the rendering "
        f"with the answer with {_head(found[at:])}"
    )


def common_length(one: str, other: str) -> int:
    """Returns the length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # bisection: comparing slices is fast, a loop over characters is not
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _quoted(text: str) -> str:
    if len(text) > 2 * _SHOWN:
        text = f"{text[:_SHOWN]} ... {text[-_SHOWN:]}"
    return repr(text)[1:-1]


def _head(text: str) -> str:
    return repr(text[:40]) if text else "nothing"


def _tail(text: str) -> str:
    return repr(text[-40:]) if text else "its beginning"
