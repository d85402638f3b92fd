"""Which text a record has: a column, a nested column, or several columns in a template."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dovetail.config import ConfigError

DEFAULT_COLUMNS = ("text", "content")
_LISTED = 8
_MISSING = object()
_TYPES = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


class NoTextError(Exception):
    """A record has no text; the message says why, in a few words."""


class _Piece(NamedTuple):
    """Literal text, and the column that follows it."""

    literal: str
    column: str | None


class TextField:
    """Takes the text of records; see `Files.Config.text`."""

    def __init__(self, text: str, where: str = "text") -> None:
        """Parses the name of a column or a template; errors begin with `where`."""
        self.source = text
        self._pieces = list(_parse(text, where)) if "{" in text or "}" in text else []

    def text(self, record: Mapping[str, Any]) -> str:
        """Returns the text of a record."""
        if self._pieces:
            found = [
                literal + (_text_of(record, column) if column is not None else "")
                for literal, column in self._pieces
            ]
            return "".join(found)
        return _text_of(record, self.source or _default(record))

    def columns(self, available: Iterable[str]) -> list[str]:
        """Returns the columns of a table to read, of those that it has."""
        names = list(dict.fromkeys(available))
        wanted = [column for _, column in self._pieces if column is not None]
        wanted = wanted or [self.source or _default(dict.fromkeys(names))]
        return list(dict.fromkeys(_top_level(name, names) for name in wanted))


def _parse(text: str, where: str) -> Iterator[_Piece]:
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(
            f"{where}: {text!r} is not a template: {error}. Write columns as {{title}}, and a "
            "brace as {{ or }}."
        ) from error
    for literal, column, spec, conversion in pieces:
        if column == "" or spec or conversion:
            raise ConfigError(
                f"{where}: {text!r} has a placeholder that is not the name of a column alone. "
                "Write for example {title}."
            )
        yield _Piece(literal, column)
    if all(column is None for _, column, _, _ in pieces):
        raise ConfigError(f"{where}: {text!r} names no column. Write for example {{title}}.")


def _default(record: Mapping[str, Any]) -> str:
    found = next((column for column in DEFAULT_COLUMNS if column in record), None)
    if found is None:
        raise NoTextError(f"no column 'text' or 'content'; {_listing(record)}. Set text=COLUMN")
    return found


def _text_of(record: Mapping[str, Any], column: str) -> str:
    value = _lookup(record, column)
    if value is _MISSING:
        raise NoTextError(f"no column {column!r}; {_listing(record)}")
    if isinstance(value, bytes):
        raise NoTextError(f"column {column!r} is not UTF-8 text")
    if not isinstance(value, str):
        found = _TYPES.get(type(value), f"of type {type(value).__name__}")
        raise NoTextError(f"column {column!r} is {found}, not text")
    if not value.isascii() and not _is_unicode(value):
        raise NoTextError(f"column {column!r} has half of a surrogate pair, which is no character")
    return value


def _lookup(record: Any, column: str) -> Any:
    """Returns a value by its key, or by a path such as `a.b`."""
    if not isinstance(record, Mapping):
        return _MISSING
    if column in record:
        return record[column]
    first, dot, rest = column.partition(".")
    return _lookup(record[first], rest) if dot and first in record else _MISSING


def _top_level(column: str, names: list[str]) -> str:
    found = next((name for name in (column, column.partition(".")[0]) if name in names), None)
    if found is None:
        raise NoTextError(f"no column {column!r}; {_listing(names)}")
    return found


def _is_unicode(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _listing(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    if not shown:
        return "it has none"
    return "it has " + ", ".join(shown[:_LISTED]) + (", ..." if len(shown) > _LISTED else "")
