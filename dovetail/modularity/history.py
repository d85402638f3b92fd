"""What real commits touched when they added features: read from the repository's history."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dovetail.features import Feature
from dovetail.modularity.leaks import COMPOSERS
from dovetail.modularity.store import PACKAGE


@dataclass(frozen=True)
class Addition:
    """A commit that brought features.

    Attributes:
        commit: its short hash.
        subject: the first line of its message.
        features: those whose own file came with it.
        new_lines: lines of package files that the commit made.
        composed_lines: lines added or removed in files that were there before and compose:
            experiments, families of models and the like.
        touched_lines: the same for all other files of the package. What is touched need not be
            for the feature: a commit may do more than one thing, and often makes a joint first.
    """

    commit: str
    subject: str
    features: tuple[str, ...]
    new_lines: int
    composed_lines: int
    touched_lines: int

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return asdict(self)


def additions(known: Mapping[str, Feature], package: Path = PACKAGE) -> list[Addition]:
    """Returns the commits that added features, oldest first; none where there is no history."""
    commits: dict[str, list[str]] = {}
    for name, feature in known.items():
        found = _git(package, "log", "--diff-filter=A", "--format=%h", "--", feature.files[0])
        if found:
            commits.setdefault(found[-1], []).append(name)
    order = _git(package, "log", "--reverse", "--topo-order", "--format=%h %s")
    subjects = dict(line.split(" ", 1) for line in order)
    return [
        Addition(commit, subjects[commit], tuple(commits[commit]), *_lines(package, commit))
        for commit in subjects
        if commit in commits
    ]


def _lines(package: Path, commit: str) -> tuple[int, int, int]:
    """Returns the new, composed and touched lines of a commit."""
    made = set(_git(package, "diff-tree", "-r", "--diff-filter=A", "--name-only", *_range(commit)))
    new, composed, touched = 0, 0, 0
    for line in _git(package, "diff-tree", "-r", "--numstat", *_range(commit)):
        added, removed, name = line.split("\t")
        room = Path(name).parts[1:2]
        if not name.startswith(f"{package.name}/") or added == "-":
            continue
        if name in made:
            new += int(added)
        elif room and room[0] in COMPOSERS:
            composed += int(added) + int(removed)
        else:
            touched += int(added) + int(removed)
    return new, composed, touched


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
