"""The commits that added a feature to a code base and spread it, from git.

A commit counts if it brings the feature's words into a file that did not have them. Lines are read
as text, so words in docstrings count; comments after `#` do not.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dovetail.config import ConfigError
from dovetail.modularity.scan.sources import is_test
from dovetail.modularity.scan.words import FeatureWords

_MARK = "\x01commit\x01"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROGRESS_EVERY = 50  # commits


@dataclass
class FeatureCommit:
    """A commit that brings the feature into files, and all that it touched."""

    commit: str
    date: str
    subject: str
    new_files: int = 0
    new_files_lines: int = 0
    existing_files: int = 0
    existing_files_lines: int = 0
    reached: list[str] = field(default_factory=list)  # files that name the feature from here on
    reached_existing: int = 0  # of those, how many were there before


@dataclass
class FeatureHistory:
    """The commits that added and spread a feature, oldest first."""

    additions: list[FeatureCommit]
    num_commits: int  # that touch a line which may name the feature
    complete: bool  # or stopped by a limit

    def as_json(self) -> dict[str, Any]:
        """Returns the history as JSON values."""
        return asdict(self)


def read_history(
    root: Path,
    words: FeatureWords,
    *,
    tests: bool = False,
    limit: int = 2000,
    seconds: float = 300.0,
    progress: Callable[[str], None] = lambda line: None,
) -> FeatureHistory:
    """Reads the history of the folder, from the oldest commit on.

    Args:
        root: A folder in a git repository.
        words: The words of the feature.
        tests: Whether tests count.
        limit: How many commits that may name the feature to read at most.
        seconds: How long to read at most.
        progress: Called with a line of progress.

    Raises:
        ConfigError: if the folder is in no git repository.
    """
    folder = root if root.is_dir() else root.parent
    _check_repository(folder)
    parser = _LogParser(words, tests)
    deadline = time.monotonic() + seconds
    complete = True
    for line in _log(folder, words):
        parser.parse(line)
        if line.startswith(_MARK):
            if parser.num_commits > limit or time.monotonic() > deadline:
                complete = False
                break
            if parser.num_commits % _PROGRESS_EVERY == 0:
                progress(f"read {parser.num_commits} commits")
    additions = [each for each in parser.commits if each.reached]
    return FeatureHistory(additions, min(parser.num_commits, limit), complete)


def _check_repository(folder: Path) -> None:
    command = ["git", "-C", str(folder), "rev-parse", "--is-inside-work-tree"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ConfigError("--history reads git's log, and there is no `git` here") from None
    if result.returncode != 0:
        raise ConfigError(
            f"--history: {folder} is in no git repository; give a clone, or leave --history out"
        )


def _log(folder: Path, words: FeatureWords) -> Iterator[str]:
    """Yields the lines of the diffs of the commits that may name the feature, oldest first."""
    command = ["git", "-C", str(folder), "log", "--reverse", "--no-merges", "--relative"]
    command += ["--no-color", "--no-ext-diff", "--find-renames", "--unified=0", "--patch"]
    command += [f"--format={_MARK}%h%x01%as%x01%s", "--pickaxe-all", "--regexp-ignore-case"]
    command += ["--src-prefix=a/", "--dst-prefix=b/", "--extended-regexp"]
    command += [f"-G{words.pattern}", "--", "*.py"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield line.rstrip("\n")
        finally:
            process.kill()  # the caller may stop early


class _LogParser:
    """Parses `git log --patch`, line by line."""

    def __init__(self, words: FeatureWords, tests: bool) -> None:
        self.commits: list[FeatureCommit] = []
        self.num_commits = 0
        self._words = words
        self._tests = tests
        self._known: set[str] = set()  # files that name the feature
        self._file = ""
        self._new = self._in_hunk = False

    def parse(self, line: str) -> None:
        """Parses the next line."""
        if line.startswith(_MARK):
            self.num_commits += 1
            commit, date, subject = line.removeprefix(_MARK).split("\x01", 2)
            self.commits.append(FeatureCommit(commit, date, subject))
        elif line.startswith("diff --git "):
            self._new = self._in_hunk = False
        elif line.startswith("@@"):
            self._in_hunk = True
        elif self._in_hunk:
            self._parse_change(line)
        else:
            self._parse_header(line)

    def _parse_header(self, line: str) -> None:
        if line.startswith("new file mode"):
            self._new = True
        elif line.startswith("rename from "):
            self._file = line.removeprefix("rename from ")
        elif line.startswith("rename to "):
            if self._file in self._known:
                self._known.add(line.removeprefix("rename to "))
        elif line.startswith(("--- a/", "+++ b/")):
            self._file = line[len("--- a/") :].rstrip("\t")
            if line.startswith("+") and self._counts:
                self.commits[-1].new_files += self._new
                self.commits[-1].existing_files += not self._new

    def _parse_change(self, line: str) -> None:
        if not self._counts or not line.startswith(("+", "-")):
            return
        commit = self.commits[-1]
        if self._new:
            commit.new_files_lines += 1
        else:
            commit.existing_files_lines += 1
        names = _IDENTIFIER.findall(line[1:].partition("#")[0]) if line.startswith("+") else ()
        if self._file not in self._known and self._words.match_any(names):
            self._known.add(self._file)
            commit.reached.append(self._file)
            commit.reached_existing += not self._new

    @property
    def _counts(self) -> bool:
        return self._tests or not is_test(self._file)
