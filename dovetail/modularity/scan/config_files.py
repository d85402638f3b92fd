"""The keys of YAML, TOML and gin files, line by line.

No parser of those formats tells on which line a key stands, and the key is all we want; so a line
that opens with a key is one. What stands in a block of text may be taken for a key.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from dovetail.modularity.scan.sources import Source

_KEY = {
    ".yaml": re.compile(
        r"(?P<margin>\s*)(?:- +)?['\"]?(?P<key>[A-Za-z_][\w./-]*)['\"]?\s*:(?:\s|$)"
    ),
    ".toml": re.compile(
        r"(?P<margin>\s*)(?:\[+)?['\"]?(?P<key>[A-Za-z_][\w.-]*)['\"]?\s*(?:=|\]+)"
    ),
    ".gin": re.compile(r"(?P<margin>\s*)(?P<key>[A-Za-z_][\w./@-]*)\s*="),
}
_KEY[".yml"] = _KEY[".yaml"]


def config_keys(source: Source) -> list[tuple[str, int, bool]]:
    """Returns every key of a config file, with its line and whether it stands at the margin."""
    pattern = _KEY[PurePosixPath(source.name).suffix]
    found = []
    for number, line in enumerate(source.text.splitlines(), start=1):
        if key := pattern.match(line):
            found.append((key["key"], number, not key["margin"]))
    return found
