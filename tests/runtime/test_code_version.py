"""The version of the code: the commit of a module, and a hash of uncommitted changes."""

import subprocess
import sys
import types

import pytest

from dovetail.runtime.code_version import code_versions, package_versions


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A module in a git repository of its own; returns its file and a function that calls git."""
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # of a hook that runs the tests
        monkeypatch.delenv(variable, raising=False)

    def git(*arguments):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.check_output(command, text=True).strip()

    file = tmp_path / "my_layers.py"
    file.write_text("WIDTH = 1\n")
    module = types.ModuleType("my_layers")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "my_layers", module)
    return file, git


def commit_all(git):
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "Add a layer")
    return git("rev-parse", "HEAD")


def test_a_clean_module_has_its_commit_and_a_changed_one_also_a_hash(repository):
    file, git = repository
    commit = commit_all(git)
    assert code_versions(["my_layers"]) == {"my_layers": {"commit": commit}}
    hashes = []
    for text in ("WIDTH = 2\n", "WIDTH = 3\n", "WIDTH = 2\n"):
        file.write_text(text)
        version = code_versions(["my_layers"])["my_layers"]
        assert version.keys() == {"commit", "diff"}
        assert version["commit"] == commit
        hashes.append(version["diff"])
    assert hashes[0] == hashes[2] != hashes[1]
    git("commit", "-q", "-a", "-m", "Widen it")
    assert code_versions(["my_layers"]) == {"my_layers": {"commit": git("rev-parse", "HEAD")}}


def test_a_new_file_is_a_change(repository):
    file, git = repository
    commit_all(git)
    (file.parent / "layers").mkdir()
    hashes = []
    for text in ("A = 1\n", "A = 2\n"):
        (file.parent / "layers" / "new.py").write_text(text)
        hashes.append(code_versions(["my_layers"])["my_layers"]["diff"])
    (file.parent / "notes.txt").write_text("no code")
    assert code_versions(["my_layers"])["my_layers"]["diff"] == hashes[1] != hashes[0]


def test_code_that_is_not_under_git_has_no_version(repository, monkeypatch):
    file, _ = repository
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(file.parent.parent))
    assert code_versions(["my_layers", "no_such_module", "sys"]) == {}


def test_without_git_there_is_no_version(repository, monkeypatch):
    _, git = repository
    commit_all(git)
    assert code_versions(["my_layers"])
    monkeypatch.setenv("PATH", "")
    assert code_versions(["my_layers"]) == {}


def test_the_versions_of_packages():
    versions = package_versions()
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"jax", "numpy", "optax"} <= versions.keys()
