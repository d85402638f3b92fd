import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.utils import (
    atomic_folder,
    atomic_write,
    locked,
    read_json_lines,
    remove_folder,
    try_lock,
    user_cache_folder,
)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_replaced_or_left_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "file"
    atomic_write(file, "old ä")
    assert file.read_text(encoding="utf-8") == "old ä"
    atomic_write(file, b"\x00new")
    assert file.read_bytes() == b"\x00new"

    def fail(_):
        raise OSError("no")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no"):
        atomic_write(file, "third")
    assert file.read_bytes() == b"\x00new"
    assert names(tmp_path) == ["file"]


def test_a_folder_appears_complete_or_not_at_all(tmp_path):
    final = tmp_path / "final"

    def fail():
        with atomic_folder(final) as temporary:
            (temporary / "x").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert names(tmp_path) == []
    with atomic_folder(final) as temporary:
        (temporary / "x").write_text("whole")
        assert not final.exists()
    assert names(tmp_path) == ["final"]
    remove_folder(final)
    assert names(tmp_path) == []


def test_the_first_of_two_folders_stays(tmp_path):
    final = tmp_path / "final"
    with atomic_folder(final) as temporary:
        (temporary / "x").write_text("ours")
        final.mkdir()
        (final / "x").write_text("theirs")
    assert (final / "x").read_text() == "theirs"
    assert names(tmp_path) == ["final"]


def test_the_cache_folder_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_folder() == tmp_path / "dovetail"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("relative/path", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert user_cache_folder().is_relative_to(tmp_path / "home")


def test_a_lock_has_one_holder(tmp_path):
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    assert try_lock(tmp_path / "lock") is None
    lock.release()
    waited = []
    with locked(tmp_path / "lock", lambda: waited.append(1)) as is_held:
        assert is_held
        assert try_lock(tmp_path / "lock") is None
    assert waited == []
    with pytest.raises(OSError, match="lock"):
        try_lock(tmp_path / "lock" / "below a file")


def test_importing_the_package_imports_nothing_heavy():
    script = (
        "import sys, dovetail.utils\n"
        "heavy = {'jax', 'numpy', 'rich', 'filelock', 'platformdirs', 'asyncio'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_damaged_lines_of_json_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert read_json_lines(path) == []
    path.write_bytes(b'{"a": 1}\n\xff\xfe\n[2]\n' + b"[" * 100_000 + b'\n{"b": 2}\n{"c": ')
    assert read_json_lines(path) == [{"a": 1}, {"b": 2}]
