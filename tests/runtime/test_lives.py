"""Lives of a run: an older one harms nothing, and lost checkpoints are no new beginning."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import RunError
from dovetail.runtime import Agreement, Checkpointer, FencedError, Life, take_life
from dovetail.runtime.checkpoints import saving
from dovetail.runtime.checkpoints.folders import StepFolders
from dovetail.runtime.checkpoints.manifest import Manifest
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
    folders.set_aside([2, 3])
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
            newer.went_on_from(restored)

    monkeypatch.setattr(Manifest, "write", write_then_overtaken)
    old.save(2, state(2))
    with pytest.raises(FencedError):
        old.finish()
    assert (tmp_path / "checkpoints" / "2-1" / "manifest.json").exists() == is_kept


def test_a_run_that_lost_its_checkpoints_does_not_start_again(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "checkpoints")
    third = started(tmp_path)
    with pytest.raises(RunError, match=r"has no checkpoint, but an earlier life .* saved step 2"):
        third.restore(like())


def test_a_run_that_never_saved_starts_again_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    life = take_life(tmp_path / "lives")
    life.went_on_from(0)
    life._last_write = float("-inf")
    life.reached(7)
    second = started(tmp_path)
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert second.restore(like()) is None
    assert "has reached step 7, but no checkpoint is left" in caplog.text


def test_the_furthest_of_the_earlier_lives_counts(tmp_path: Path) -> None:
    for reached, kept in ((9, 4), (6, 6), (8, None)):
        life = take_life(tmp_path)
        life.went_on_from(0)
        life._last_write = float("-inf")
        life.reached(reached)
        if kept is not None:
            life.saved(kept)
    found = take_life(tmp_path).before()
    assert found is not None
    assert found.saved == 6
    assert Life.before(take_life(tmp_path / "new")) is None


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
