"""The commits that brought a feature in, with what they touched in files old and new."""

import os
import subprocess

import pytest

from dovetail.config import ConfigError
from dovetail.modularity.scan import feature_words, read_history
from tests.modularity.code_base import write_files

ROPE = feature_words("rope")


def git(root, *arguments):
    people = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
    settings = {**os.environ, **dict.fromkeys(people, "a@b"), "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", "-C", str(root), *arguments]
    subprocess.run(command, check=True, env=settings, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    def commit(subject, files):
        write_files(tmp_path, files)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-m", subject)

    git(tmp_path, "init")
    commit("start", {"attention.py": "a = 1\n", "model.py": "b = 1\nscope = 1\n", "other.py": ""})
    commit(
        "add rope",
        {
            "rope.py": "class Rope:\n    base = 1\n",
            "attention.py": "import rope\na = 1\n",
            "other.py": "c = 1\nd = 2\n",
            "test_rope.py": "import rope\n",
        },
    )
    commit("more rope", {"rope.py": "class Rope:\n    base = 2\n    rope = 1\n"})
    commit("comment", {"model.py": "b = 1  # rope\nscope = 1\n"})
    git(tmp_path, "mv", "attention.py", "attend.py")
    commit("move", {"attend.py": "import rope\na = 1\nrope_too = 1\n"})
    commit("wire", {"model.py": "b = 1\nrope = 1\n"})
    return tmp_path


def test_commits_that_reach_new_files_are_listed_oldest_first(repository):
    history = read_history(repository, ROPE)
    assert [each.subject for each in history.additions] == ["add rope", "wire"]
    first, second = history.additions
    assert first.reached == ["attention.py", "rope.py"]
    assert first.reached_existing == 1
    assert (first.new_files, first.new_files_lines) == (1, 2)
    assert (first.existing_files, first.existing_files_lines) == (2, 3), "all that it touched"
    assert (second.new_files, second.existing_files, second.existing_files_lines) == (0, 1, 4)
    assert history.complete


def test_tests_count_where_asked_for(repository):
    first = read_history(repository, ROPE, tests=True).additions[0]
    assert first.new_files == 2
    assert "test_rope.py" in first.reached


def test_the_reading_is_bounded(repository):
    told = []
    history = read_history(repository, ROPE, limit=1, progress=told.append)
    assert not history.complete
    assert history.num_commits == 1
    assert [each.subject for each in history.additions] == ["add rope"]


def test_only_the_folder_is_read(repository):
    write_files(repository, {"inner/a.py": "rope = 1\n", "b.py": "rope = 1\n"})
    git(repository, "add", "-A")
    git(repository, "commit", "-m", "inner rope")
    history = read_history(repository / "inner", ROPE)
    assert [each.reached for each in history.additions] == [["a.py"]]


def test_a_folder_without_history_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(ConfigError, match=r"is in no git repository; give a clone"):
        read_history(tmp_path, ROPE)
