"""The commits that added features, and what else they touched, from git."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dovetail.features import Feature
from dovetail.modularity.leaks import COMPOSING
from dovetail.modularity.tasks import PACKAGE


@dataclass(frozen=True)
class Commit:
    """A commit that added code of a feature.

    Attributes:
        commit: its short hash.
        subject: the first line of its message.
        new_lines: lines in new files of the package.
        composition_lines: lines added or removed in existing files that compose: models,
            experiments, file formats, features.
        other_lines: the same for all other existing files. Not all need be for the feature: a
            commit may do several things, and often makes an extension point first.
    """

    commit: str
    subject: str
    new_lines: int
    composition_lines: int
    other_lines: int


def feature_commits(
    by_name: Mapping[str, Feature], package: Path = PACKAGE
) -> dict[str, list[Commit]]:
    """Returns the commits that added the code of each feature; none without a git repository.

    Moved files are followed: git searches for the text of a definition, and for the name of the
    feature. A renamed feature is found from its renaming on.
    """
    read = functools.cache(functools.partial(_read, package))
    return {
        name: [read(commit) for commit in _commits(package, feature)]
        for name, feature in by_name.items()
    }


def _commits(package: Path, feature: Feature) -> list[str]:
    """Returns the oldest commit of each piece of a feature's code, each once."""
    commits = [_oldest(package, f'-S"{feature.name}"', "--", "features")]
    for code in feature.files:
        file, _, name = code.partition(":")
        if name:
            keyword = "class" if name[0].isupper() else "def"
            commits.append(_oldest(package, f"-S{keyword} {name}("))
        else:
            path = package / file
            files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
            how = ("--follow", "--diff-filter=A", "--")
            commits += [_oldest(package, *how, str(each.relative_to(package))) for each in files]
    return list(dict.fromkeys(filter(None, commits)))


def _oldest(package: Path, *arguments: str) -> str:
    """Returns the oldest commit that git finds, or an empty string."""
    return ["", *_git(package, "log", "--format=%h", *arguments)][-1]


def _read(package: Path, commit: str) -> Commit:
    (subject,) = _git(package, "log", "-1", "--format=%s", commit)
    return Commit(commit, subject, *_lines(package, commit))


def _lines(package: Path, commit: str) -> tuple[int, int, int]:
    """Returns the lines of a commit in new files, in compositions and in other existing files."""
    diff = ("diff-tree", "-r", f"{commit}^", commit)
    made = set(_git(package, *diff, "--diff-filter=A", "--name-only"))
    new, composition, other = 0, 0, 0
    for line in _git(package, *diff, "--numstat"):
        added, removed, name = line.split("\t")
        subpackage = Path(name).parts[1:2]
        if not name.startswith(f"{package.name}/") or added == "-":
            continue
        if name in made:
            new += int(added)
        elif subpackage and subpackage[0] in (*COMPOSING, "features"):
            composition += int(added) + int(removed)
        else:
            other += int(added) + int(removed)
    return new, composition, other


def _git(folder: Path, *arguments: str) -> list[str]:
    """Returns the lines that git prints; none if it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
