"""What the commits touched that brought features: read from the repository's history."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dovetail.features import Feature
from dovetail.modularity.leaks import COMPOSERS
from dovetail.modularity.store import PACKAGE


@dataclass(frozen=True)
class Commit:
    """A commit that brought a file of a feature.

    Attributes:
        commit: its short hash.
        subject: the first line of its message.
        new_lines: lines of package files that the commit made.
        composed_lines: lines added or removed in files that were there before and compose:
            experiments, families of models and the like.
        touched_lines: the same for all other files of the package. What is touched need not be
            for the feature: a commit may do more than one thing, and often makes a joint first.
    """

    commit: str
    subject: str
    new_lines: int
    composed_lines: int
    touched_lines: int

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return asdict(self)


def additions(known: Mapping[str, Feature], package: Path = PACKAGE) -> dict[str, list[Commit]]:
    """Returns by feature the commits that brought its files; none where there is no history.

    A file that was moved is followed to where it began.
    """
    read = functools.cache(functools.partial(_read, package))
    return {
        name: [read(commit) for commit in _commits(package, feature)]
        for name, feature in known.items()
    }


def _commits(package: Path, feature: Feature) -> list[str]:
    """Returns the commits that brought a feature's files, each once."""
    files = [
        file
        for own in feature.files
        for file in (
            sorted((package / own).rglob("*.py")) if own.endswith("/") else [package / own]
        )
    ]
    how = ("log", "--follow", "--diff-filter=A", "--format=%h", "--")
    found = [_git(package, *how, str(file.relative_to(package))) for file in files]
    return list(dict.fromkeys(lines[-1] for lines in found if lines))


def _read(package: Path, commit: str) -> Commit:
    (subject,) = _git(package, "log", "-1", "--format=%s", commit)
    return Commit(commit, subject, *_lines(package, commit))


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
        elif room and room[0] in (*COMPOSERS, "features"):
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
