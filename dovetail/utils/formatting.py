"""Numbers for people: bytes, counts, durations, and nouns that agree with their number."""

from __future__ import annotations

from collections.abc import Sequence

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
# Parameters, tokens and operations: B is a billion, and above a trillion come the SI prefixes.
_COUNTS = ("", "k", "M", "B", "T", "P", "E", "Z", "Y")


def format_bytes(number: float) -> str:
    """Formats a number of bytes to three digits: `1.5 GB`. The units are decimal."""
    text, unit = _scaled(number, _BYTES)
    return f"{text} {unit}"


def format_count(number: float) -> str:
    """Formats a large count to three digits: `7.24B`."""
    return "".join(_scaled(number, _COUNTS))


def format_number(value: float) -> str:
    """Formats a number to four digits, or to all digits before the point: `4.255`, `12,345`."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def format_duration(seconds: float) -> str:
    """Formats a duration: `12 ms`, `4.5 s`, `2 min 05 s`, `3 h 02 min`, `12.5 days`."""
    if 0 < seconds < 0.1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {minutes:02d} min"
    days = seconds / 86_400
    text = f"{days:.3g}" if days < 999.5 else f"{days:,.0f}"
    return "1 day" if text == "1" else f"{text} days"


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """Returns a count with its noun: `1 step`, `2 steps`, `1,000 steps`.

    Args:
        number: the count.
        noun: the singular.
        nouns: the plural, where it is not the singular with an s.
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def _scaled(number: float, units: Sequence[str]) -> tuple[str, str]:
    for unit in units[:-1]:
        if number < 999.5:
            return f"{number:.3g}", unit
        number /= 1000
    return (f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"), units[-1]
