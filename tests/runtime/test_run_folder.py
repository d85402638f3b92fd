"""Run folders: one identity, one writer."""

import errno

import pytest

from dovetail.config import REQUIRED, Component, ConfigError, StorageError, incidental, to_text
from dovetail.runtime import RunFolder, run_folder, short_hash


class Sized(Component):
    class Config(Component.Config["Sized"]):
        width: int = REQUIRED
        every: int = incidental(10)


def test_a_folder_describes_its_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    config = Sized.Config(width=4, every=3)
    folder.claim(config)
    folder.describe(config, {"experiment": "x", "imports": []})
    folder.release()
    assert RunFolder(tmp_path / "run").config() == config
    about = RunFolder(tmp_path / "run").about()
    assert about["experiment"] == "x"
    assert about["versions"]["jax"]


def test_what_is_incidental_may_change_and_the_rest_may_not(tmp_path):
    folder = RunFolder(tmp_path)
    folder.describe(Sized.Config(width=4), {})
    RunFolder(tmp_path).check_identity(Sized.Config(width=4, every=99))
    with pytest.raises(ConfigError) as error:
        RunFolder(tmp_path).check_identity(Sized.Config(width=5))
    assert "width: 4 -> 5" in str(error.value)
    assert "--run" in str(error.value)


def test_a_folder_of_before_a_field_was_part_of_the_identity(tmp_path):
    config = Sized.Config(width=4)
    RunFolder(tmp_path).describe(config, {})
    (tmp_path / "identity.txt").write_text(to_text(Sized.Config(width=9)))  # as older rules said
    RunFolder(tmp_path).check_identity(config)
    with pytest.raises(ConfigError, match="another identity"):
        RunFolder(tmp_path).check_identity(Sized.Config(width=5))
    (tmp_path / "config.txt").write_text("gone.package:Sized()\n")
    with pytest.raises(ConfigError, match="width: 9 -> 4"):
        RunFolder(tmp_path).check_identity(config)


def test_the_hash_is_that_of_the_identity():
    assert short_hash(Sized.Config(width=4)) == short_hash(Sized.Config(width=4, every=2))
    assert short_hash(Sized.Config(width=4)) != short_hash(Sized.Config(width=5))


def test_two_processes_do_not_share_a_folder(tmp_path):
    folder = RunFolder(tmp_path)
    folder.claim(Sized.Config(width=4))
    # Another open file of the same process is another holder to flock, as another process would be.
    with pytest.raises(ConfigError, match="another process is writing"):
        RunFolder(tmp_path).claim(Sized.Config(width=4))
    folder.release()
    folder.claim(Sized.Config(width=4))
    folder.release()


def test_a_folder_that_is_none_says_so(tmp_path):
    with pytest.raises(ConfigError, match="is not a run folder"):
        RunFolder(tmp_path).about()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used as a run folder"):
        RunFolder(tmp_path / "file").claim(Sized.Config(width=4))


def test_a_full_disk_is_no_wrong_input(tmp_path, monkeypatch):
    """The exit code is 1, so that a supervisor tries again; the disk may have room then."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_folder, "try_lock", full)
    with pytest.raises(StorageError, match="cannot be used as a run folder: No space left"):
        RunFolder(tmp_path).claim(Sized.Config(width=4))
    assert not issubclass(StorageError, ConfigError)
