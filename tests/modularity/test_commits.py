"""The commits that added a feature, in a small repository."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.features import features
from dovetail.modularity.commits import feature_commits


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a repository: a file, then a feature with an edit here and there."""
    package = tmp_path / "dovetail"

    def commit(message: str, **files: str) -> None:
        for name, text in files.items():
            file = package / f"{name.replace('__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        for arguments in (["add", "-A"], ["commit", "-q", "-m", message]):
            subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    commit("begin", layers__one="a\nb\n", models__llama="a\n")
    commit(
        "add it",
        features__alibi='@feature("alibi")\ny\nz\n',
        layers__one="a\nc\nd\n",
        models__llama="",
    )
    return package


def test_a_commit_is_read(package: Path) -> None:
    nowhere = replace(features()["rope"], files=("n.py", "n.py:Class"))
    known = {"alibi": features()["alibi"], "rope": nowhere}
    found = feature_commits(known, package)
    assert found["rope"] == []
    (found,) = found["alibi"]
    assert found.subject == "add it"
    assert (found.new_lines, found.composition_lines, found.other_lines) == (3, 1, 3)


def test_without_a_repository_there_are_no_commits(tmp_path: Path) -> None:
    found = feature_commits({"alibi": features()["alibi"]}, tmp_path)
    assert found == {"alibi": []}
