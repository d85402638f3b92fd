"""Lives of a run: an older one harms nothing, and lost checkpoints are no new beginning."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import RunError
from dovetail.runtime import Agreement, Checkpointer, FencedError, suspects, take_life
from dovetail.runtime.checkpoints import saving
from dovetail.runtime.checkpoints.folders import CheckpointName, StepFolders
from dovetail.runtime.checkpoints.local.tier import LocalTier
from dovetail.runtime.checkpoints.manifest import Manifest
from dovetail.runtime.checkpoints.saving import cause_of
from tests.runtime.test_checkpoint_integrity import like, same, state


def started(run: Path, **values: Any) -> Checkpointer:
    checkpointer = Checkpointer.Config(**values).build()
    checkpointer.open(run / "checkpoints")
    checkpointer.start(Agreement(), take_life(run / "lives"))
    return checkpointer


def saved(run: Path, *steps: int, **values: Any) -> Checkpointer:
    checkpointer = started(run, **values)
    for step in steps:
        checkpointer.save(step, state(step))
    assert checkpointer.finish()
    return checkpointer


def names(run: Path) -> list[str]:
    return sorted(folder.name for folder in (run / "checkpoints").iterdir() if folder.is_dir())


def test_each_life_writes_its_own_folders(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    assert names(tmp_path) == ["1-1", "2-1"]
    second = started(tmp_path)
    assert second.restore(like())[0] == 2
    second.save(2, state(2))
    assert second.finish()
    assert names(tmp_path) == ["1-1", "2-1"], "what was restored is there already"
    second.save(3, state(3))
    assert second.finish()
    assert names(tmp_path) == ["2-1", "3-2"]


def test_a_step_that_is_saved_again_replaces_that_of_an_older_life(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    second = started(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "2-1" / "0")
    assert second.restore(like())[0] == 1
    second.save(2, state(2))
    assert second.finish()
    assert names(tmp_path) == ["1-1", "2-2", "damaged-2-1"]
    assert started(tmp_path).restore(like())[0] == 2


def test_a_life_changes_nothing_of_a_later_one(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    folders = StepFolders(tmp_path / "checkpoints")
    folders.life = 1
    started(tmp_path)
    saved(tmp_path, 2, 3)
    (tmp_path / "checkpoints" / "4-3").mkdir()
    before = names(tmp_path)
    folders.set_aside([CheckpointName(2, 3), CheckpointName(3, 3)])
    folders.distrust([2, 3])
    folders.prepare(4)
    assert names(tmp_path) == before == ["2-3", "3-3", "4-3"]


@pytest.mark.parametrize(("restored", "is_kept"), [(None, True), (2, True), (1, False)])
def test_a_life_that_learns_after_its_commit_that_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored: int | None, is_kept: bool
) -> None:
    """What the newer life may have restored stays; what it does not know of must not."""
    old = saved(tmp_path, 1)
    write = Manifest.write

    def write_then_overtaken(self: Manifest, folder: Path) -> None:
        write(self, folder)
        newer = take_life(tmp_path / "lives")
        if restored is not None:
            newer.resumed_from(restored)

    monkeypatch.setattr(Manifest, "write", write_then_overtaken)
    old.save(2, state(2))
    with pytest.raises(FencedError):
        old.finish()
    assert (tmp_path / "checkpoints" / "2-1" / "manifest.json").exists() == is_kept


def test_a_save_that_fails_because_a_newer_life_removed_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and says why, instead of reporting a failure of the disk."""
    old = saved(tmp_path, 1)
    write = Manifest.write

    def write_after_a_newer_life(self: Manifest, folder: Path) -> None:
        monkeypatch.setattr(Manifest, "write", write)
        saved(tmp_path, 2)
        write(self, folder)

    monkeypatch.setattr(Manifest, "write", write_after_a_newer_life)
    old.save(2, state(2))
    with pytest.raises(FencedError, match="Life 2 of this run has started"):
        old.finish()
    assert names(tmp_path) == ["1-1", "2-2"]


def test_a_run_that_lost_its_checkpoints_does_not_start_again(tmp_path: Path) -> None:
    checkpointer = started(tmp_path)
    checkpointer._life.resumed_from(0)
    for step in (1, 2):
        checkpointer.save(step, state(step))
    assert checkpointer.finish()
    shutil.rmtree(tmp_path / "checkpoints")
    second = started(tmp_path)
    with pytest.raises(RunError, match=r"has no checkpoint, but an earlier life .* saved step 2"):
        second.restore(like())


def test_a_run_that_never_saved_starts_again_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    life = take_life(tmp_path / "lives")
    life.resumed_from(0)
    life._last_write = float("-inf")
    life.reached(7)
    second = started(tmp_path)
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert second.restore(like()) is None
    assert "has reached step 7, but no checkpoint is left" in caplog.text


def test_the_last_life_that_trained_says_what_was_saved(tmp_path: Path) -> None:
    first = take_life(tmp_path)
    assert first.before() is None
    first.resumed_from(0)
    first.saved(6)
    take_life(tmp_path)  # died before it restored anything
    found = take_life(tmp_path).before()
    assert found is not None
    assert (found.number, found.saved) == (1, 6)


def test_what_is_set_aside_as_suspect_is_not_missed(tmp_path: Path) -> None:
    saved(tmp_path, 2, 4).distrust(after=0)
    assert names(tmp_path) == ["suspect-2-1", "suspect-4-1"]
    assert started(tmp_path).restore(like()) is None, "the run begins again"


def test_only_the_local_tier_had_saved(tmp_path: Path) -> None:
    """A machine that loses its power loses what is in its memory; the run goes on from step 0."""
    local = LocalTier.Config(folder=str(tmp_path / "memory"), every=2)
    first = started(tmp_path, every=100, local=local)
    first._life.resumed_from(0)
    first.save(2, state(2))
    first.finish()
    first.close()
    second = started(tmp_path, every=100, local=local)
    assert second.restore(like())[0] == 2
    second._life.resumed_from(2)
    second.close()
    shutil.rmtree(tmp_path / "memory")
    assert started(tmp_path, every=100, local=local).restore(like()) is None


def test_an_old_life_removes_no_local_checkpoint_of_a_newer_one(tmp_path: Path) -> None:
    local = LocalTier.Config(folder=str(tmp_path / "disk"), every=5)
    first = started(tmp_path, local=local)
    first.save(5, state(5))
    first.finish()
    old = started(tmp_path, local=local)
    assert old.restore(like())[0] == 5
    new = started(tmp_path, local=local)
    assert new.restore(like())[0] == 5
    for step in (10, 15):
        new.save(step, state(step))
    new.finish()
    with pytest.raises(FencedError):
        old.save(10, state(10))
    held = sorted(folder.name for folder in (tmp_path / "disk").glob("*/*"))
    assert held == ["10-3", "15-3"]


def test_a_damaged_copy_does_not_hide_that_of_an_older_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 10)
    with monkeypatch.context() as patched:  # as if it was killed before it removes the older one
        patched.setattr(StepFolders, "retain", lambda *_: None)
        saved(tmp_path, 10)
    shutil.rmtree(tmp_path / "checkpoints" / "10-2" / "0")
    third = started(tmp_path)
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert third.restore(like())[0] == 10
    assert "The checkpoint of step 10 cannot be used" in caplog.text
    third.save(11, state(11))
    assert third.finish()
    assert names(tmp_path) == ["10-1", "11-3", "damaged-10-2"]


def test_a_save_that_is_not_what_was_written_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 10)
    second = started(tmp_path)
    monkeypatch.setattr(
        saving, "sums_on_disk", lambda _, manifest, share, __: {p: [0, 0] for p in share}
    )
    second.save(10, state(10))
    assert not second.finish()
    assert names(tmp_path) == ["10-1", "damaged-10-2"]


def test_the_folder_is_kept_when_it_is_opened_again(tmp_path: Path) -> None:
    checkpointer = started(tmp_path)
    checkpointer.open(tmp_path / "checkpoints")
    checkpointer.save(1, state(1))
    assert checkpointer.finish()
    assert names(tmp_path) == ["1-1"]


def test_the_record_of_a_life_is_never_torn(tmp_path: Path) -> None:
    """The training thread and the one that saves both write it."""
    life, numbers = take_life(tmp_path), range(200)

    def reach_steps() -> None:
        for number in numbers:
            life._last_write = float("-inf")
            life.reached(number)

    thread = threading.Thread(target=reach_steps)
    thread.start()
    for number in numbers:
        life.saved(number)
        record = json.loads((tmp_path / "000001.json").read_text())
        assert record["saved"] == number
    thread.join()
    assert life._writer is not None
    life._writer.join()
    life.saved(199)
    record = json.loads((tmp_path / "000001.json").read_text())
    assert (record["saved"], record["reached"]) == (199, 199)


def test_no_step_waits_for_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that hangs stops the thread that writes, and nothing else."""
    life, disk = take_life(tmp_path), threading.Event()
    monkeypatch.setattr("dovetail.runtime.lives.atomic_write", lambda *_: disk.wait(60))
    for step in (1, 2):
        life._last_write = float("-inf")
        life.reached(step)
    assert not disk.is_set()
    assert life.record.reached == 2
    assert life._writer is not None
    assert life._writer.is_alive()
    disk.set()
    life._writer.join()


def test_a_checkpoint_that_kills_while_it_is_read_is_suspect(tmp_path: Path) -> None:
    def live(tried: int | None) -> set[int]:
        life = take_life(tmp_path)
        found = suspects(tmp_path, life.number)
        if tried is not None:
            life.tries(tried)
        return found

    assert live(40) == set()
    assert live(None) == set(), "killed before it read anything"
    assert live(40) == set()
    assert live(40) == set(), "reading takes a while, so there may be another cause"
    assert live(20) == {40}


def test_the_checkpoint_that_is_read_is_recorded(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    life = take_life(tmp_path / "lives")
    checkpointer = Checkpointer.Config(every=1).build()
    checkpointer.open(tmp_path / "checkpoints")
    checkpointer.start(Agreement(), life)
    assert checkpointer.restore(like())[0] == 2
    record = json.loads((tmp_path / "lives" / f"{life.number:06d}.json").read_text())
    assert (record["tried"], record["restored"]) == (2, None), "the loop records the rest"


def test_a_disk_error_does_not_mean_that_the_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = take_life(tmp_path)

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "iterdir", fail)
    with pytest.raises(OSError, match="Input/output"):
        life.check()
    other = OSError(errno.ENOSPC, "No space left on device")
    assert cause_of(other, life, {}, 1) is other, "what failed first"


def test_old_checkpoints_that_cannot_be_removed_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = saved(tmp_path, 1)

    def fail(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(StepFolders, "retain", fail)
    checkpointer.save(2, state(2))
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert checkpointer.finish(), "the save itself has succeeded"
    assert "Read-only file system" in caplog.text
    assert started(tmp_path).restore(like())[0] == 2


def test_a_save_that_failed_after_its_commit_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = saved(tmp_path, 1)

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(saving.Save, "_verify", fail)
        checkpointer.save(2, state(2))
        assert not checkpointer.finish()
    checkpointer.save_last(2, state(2))
    assert checkpointer.finish()
    assert names(tmp_path) == ["1-1", "2-1"]
    step, found = started(tmp_path).restore(like())
    assert step == 2
    assert same(found, state(2))
