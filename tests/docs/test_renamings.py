"""The "now" column of the log's table of names holds only names and files that exist."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_FILE = re.compile(r"[\w/{},*]+\.py")
_WORD = re.compile(r"[A-Za-z_]\w*\*?")
_QUOTED = re.compile(r'"[^"]*"')
_OLD_NAMES = "dovetail/config/old_names.py"
# Moved out of the package.
_MOVED = "tests/modularity/encapsulation.py"


def rows() -> list[tuple[str, str]]:
    """Returns the old and the new names of each row."""
    section = (ROOT / "docs/log.md").read_text().partition("**The table of names.**")[2]
    table = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    return [(before, now) for _, before, now in cells]


@functools.cache
def files() -> list[str]:
    """Returns the paths of all files of the package and its tests."""
    found = [*ROOT.glob("dovetail/**/*.py"), *ROOT.glob("tests/**/*.py")]
    return [str(file.relative_to(ROOT)) for file in found]


@functools.cache
def words() -> frozenset[str]:
    """Returns every word of the package, and of the paths of its files."""
    package = [name for name in files() if name.startswith("dovetail/") or name == _MOVED]
    package.remove(_OLD_NAMES)
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in package]
    return frozenset(re.findall(r"[A-Za-z_]\w*", " ".join([*package, *texts])))


def is_word(name: str) -> bool:
    """Says whether the package has a word; `name_*` is any that begins so."""
    if name.endswith("*"):
        return any(word.startswith(name[:-1]) for word in words())
    return name in words()


def is_file(name: str) -> bool:
    """Says whether a file exists, by the end of its path; `a/{b,c}.py` names two."""
    group = re.search(r"\{(.*)\}", name)
    if group is not None:
        return all(is_file(name.replace(group[0], each)) for each in group[1].split(","))
    pattern = re.escape(name).replace(r"\*", "[^/]+").replace("KIND", "[^/]+")
    return any(re.search(rf"(^|/){pattern}$", known) for known in files())


def test_the_table_is_read() -> None:
    assert len(rows()) > 200


@pytest.mark.parametrize(("before", "now"), rows())
def test_new_names_exist(before: str, now: str) -> None:
    now = _QUOTED.sub("", now)
    missing = [name for name in _FILE.findall(now) if not is_file(name)]
    missing += [name for name in _WORD.findall(_FILE.sub("", now)) if not is_word(name)]
    assert not missing, f"{before!r} is now {now!r}, but there is no {', '.join(missing)}"
