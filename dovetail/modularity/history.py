"""What real commits touched when they added a feature: read from the repository's history."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dovetail.features import Feature
from dovetail.modularity.store import PACKAGE


@dataclass(frozen=True)
class Addition:
    """The commit that brought a feature's own file.

    Attributes:
        commit: its short hash.
        together: how many features came with that commit.
        new_lines: lines of package files that the commit made.
        touched_lines: lines added or removed in package files that were there before. What is
            touched need not be for the feature: a commit may do more than one thing.
    """

    commit: str
    together: int
    new_lines: int
    touched_lines: int


def additions(known: Mapping[str, Feature], package: Path = PACKAGE) -> dict[str, Addition]:
    """Returns the commit that added each feature; nothing where there is no history to read."""
    commits = {}
    for name, feature in known.items():
        found = _git(package, "log", "--diff-filter=A", "--format=%h", "--", feature.files[0])
        if found:
            commits[name] = found[-1]
    together = {commit: list(commits.values()).count(commit) for commit in commits.values()}
    return {
        name: Addition(commit, together[commit], *_touched(package, commit))
        for name, commit in commits.items()
    }


def _touched(package: Path, commit: str) -> tuple[int, int]:
    made = set(_git(package, "diff-tree", "-r", "--diff-filter=A", "--name-only", *_range(commit)))
    new, touched = 0, 0
    for line in _git(package, "diff-tree", "-r", "--numstat", *_range(commit)):
        added, removed, name = line.split("\t")
        if not name.startswith(f"{package.name}/") or added == "-":
            continue
        if name in made:
            new += int(added)
        else:
            touched += int(added) + int(removed)
    return new, touched


def _range(commit: str) -> tuple[str, str]:
    return f"{commit}^", commit


def _git(folder: Path, *arguments: str) -> list[str]:
    """Returns the lines that git prints, and none where it cannot answer."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
