"""What the commits touched that added features, in a small repository."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dovetail.features import features
from dovetail.modularity.history import additions


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
    commit("add it", features__alibi="x\ny\nz\n", layers__one="a\nc\nd\n", models__llama="")
    return package


def test_a_commit_is_read(package: Path) -> None:
    known = {"alibi": features()["alibi"], "elsewhere": replace(features()["rope"], files=("n",))}
    found = additions(known, package)
    assert found["elsewhere"] == []
    (found,) = found["alibi"]
    assert found.subject == "add it"
    assert (found.new_lines, found.composed_lines, found.touched_lines) == (3, 1, 3)


def test_where_there_is_no_history_nothing_is_said(tmp_path: Path) -> None:
    found = additions({"alibi": features()["alibi"]}, tmp_path)
    assert found == {"alibi": []}
