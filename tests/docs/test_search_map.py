"""Each search in CONTRIBUTING's "Where is ...?" finds its file, with words of its question."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 6

_ROW = re.compile(
    r"^\| (?P<question>[^|]+\?) "
    r'\| `grep -rinI "(?P<pattern>[^"]+)" dovetail` '
    r"\| `(?P<file>[^`]+)` \|$"
)


def rows() -> list[tuple[str, str, str]]:
    """Returns question, pattern and file of each row of the table."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where is ...?")[2]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    matches = [_ROW.match(line) for line in lines]
    malformed = [line for line, match in zip(lines, matches, strict=True) if not match]
    assert not malformed, malformed
    return [(match["question"], match["pattern"], match["file"]) for match in matches if match]


@functools.cache
def source_lines() -> list[tuple[str, str]]:
    """Returns every line of the package, with its file."""
    package = ROOT / "dovetail"
    files = [path for path in sorted(package.rglob("*")) if path.suffix in (".py", ".toml")]
    return [
        (str(path.relative_to(package)), line)
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def test_there_are_at_least_twenty_questions() -> None:
    assert len(rows()) >= 20


@pytest.mark.parametrize(("question", "pattern", "file"), rows(), ids=str)
def test_a_search_finds_its_file_among_few_others(question: str, pattern: str, file: str) -> None:
    search = re.compile(pattern, re.IGNORECASE)
    hits = [name for name, line in source_lines() if search.search(line)]
    assert file in hits, (
        f"{question} nothing in dovetail/{file} matches {pattern!r}; it hits {hits}"
    )
    assert len(hits) <= MOST_LINES, f"{question} {pattern!r} hits {len(hits)} lines: {hits}"


@pytest.mark.parametrize(("question", "pattern", "file"), rows(), ids=str)
def test_a_search_uses_only_words_of_its_question(question: str, pattern: str, file: str) -> None:
    known = re.findall(r"\w+", question.lower())
    words = re.findall(r"\w+", pattern.lower())
    foreign = [word for word in words if not any(each.startswith(word) for each in known)]
    assert not foreign, f"{question} {pattern!r} uses other words: {foreign}"
