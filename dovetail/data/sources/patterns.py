"""Patterns of file names: `**`, `*`, `?` and `[...]`."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Compiles patterns to a function that says whether a relative name matches one of them.

    Path.glob is not used because it silently skips folders that it may not read.
    """
    compiled = [re.compile(_expression(pattern), re.DOTALL) for pattern in patterns]
    return lambda name: any(each.fullmatch(name) for each in compiled)


def split_pattern(path: str) -> tuple[str, str]:
    """Returns the folders of a path before its first wildcard, and the pattern below them."""
    pieces = path.split("/")
    magic = next((i for i, piece in enumerate(pieces) if glob.has_magic(piece)), len(pieces))
    root = "/".join(pieces[:magic])
    return root or ("/" if path.startswith("/") else "."), "/".join(pieces[magic:])


def depth(patterns: Sequence[str]) -> int | None:
    """Returns how many levels of folders patterns descend; None for all of them."""
    if any("**" in pattern for pattern in patterns):
        return None
    return max(pattern.count("/") for pattern in patterns)


def _expression(pattern: str) -> str:
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        special.get(piece) or (f"[^{piece[2:]}" if piece[:2] == "[!" else piece)
        if index % 2
        else re.escape(piece)
        for index, piece in enumerate(pieces)
    )
