"""Checkpoints: whole or not at all, never in the way of training."""

import logging
import re
import resource
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, Error
from dovetail.runtime import Agreement, Checkpointer, ObjectStore, abstract_state, take_life
from dovetail.runtime.checkpoints import stores as module


def state(value):
    return {
        "params": {"a/b/weight": jnp.full((64, 64), value), "c": jnp.arange(3.0)},
        "step": jnp.int32(value),
    }


def like():
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return abstract_state(state(0), jax.tree.map(lambda _: here, state(0)))


def opened(folder, **values):
    checkpointer = Checkpointer.Config(**values).build()
    checkpointer.open(folder)
    return checkpointer


def test_the_newest_state_comes_back(tmp_path):
    saving = opened(tmp_path, keep=2)
    for step in (1, 2, 3):
        saving.save(step, state(step))
    assert saving.finish()
    assert opened(tmp_path).steps() == [2, 3]
    step, restored = opened(tmp_path).restore(like())
    assert step == 3
    np.testing.assert_array_equal(restored["params"]["a/b/weight"], np.full((64, 64), 3.0))


def test_nothing_saved_means_nothing_restored(tmp_path):
    assert opened(tmp_path / "none").restore(like()) is None


def test_a_save_is_not_disturbed_by_donating_the_state_at_once(tmp_path):
    saving = opened(tmp_path)
    bump = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    current = state(5)
    saving.save(5, current)
    for _ in range(20):
        current = bump(current)
    assert saving.finish()
    _, restored = opened(tmp_path).restore(like())
    np.testing.assert_array_equal(restored["params"]["a/b/weight"], np.full((64, 64), 5.0))


def saved_twice(folder, make=state):
    saving = opened(folder)
    saving.save(1, make(1))
    saving.save(2, make(2))
    assert saving.finish()


def damage(checkpoint):
    for file in checkpoint.rglob("*"):
        if file.is_file() and file.parent.name == "d":
            file.write_bytes(b"damaged")


def test_a_damaged_checkpoint_is_passed_over_loudly(tmp_path, caplog):
    saved_twice(tmp_path)
    damage(tmp_path / "2")
    with caplog.at_level(logging.WARNING, "dovetail"):
        again = opened(tmp_path)
        step, _ = again.restore(like())
    assert step == 1
    assert re.search(r"checkpoint of step 2 cannot be used \(\w+(Error|Exception): \S", caplog.text)
    again.save(2, state(2))
    assert again.finish(), "its step can be saved again"
    assert opened(tmp_path).restore(like())[0] == 2
    damage(tmp_path / "2")
    again = opened(tmp_path)
    again.restore(like())
    again.save(2, state(2))
    assert again.finish(), "and once more"


def test_reading_changes_nothing_on_disk(tmp_path):
    saved_twice(tmp_path)
    damage(tmp_path / "2")
    before = sorted(tmp_path.rglob("*"))
    assert opened(tmp_path).restore(like())[0] == 1
    assert opened(tmp_path).restore_parameters(like()["params"])[0] == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_checkpoint_is_set_aside_by_the_next_save(tmp_path):
    saved_twice(tmp_path)
    damage(tmp_path / "2")
    again = opened(tmp_path)
    again.restore(like())
    again.save(3, state(3))
    assert again.finish()
    assert (tmp_path / "damaged-2").is_dir()
    assert opened(tmp_path).steps() == [1, 3]


def test_a_checkpoint_that_somebody_has_restored_is_read_again(tmp_path):
    saved_twice(tmp_path)
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    damage(tmp_path / "1")
    damage(tmp_path / "2")
    reading = opened(tmp_path)
    with pytest.raises(ConfigError, match="Restore one from a copy"):
        reading.restore(like())
    shutil.copytree(tmp_path.with_name("copy"), tmp_path, dirs_exist_ok=True)
    assert reading.restore(like())[0] == 2


def test_exhausted_memory_is_no_damage(tmp_path, monkeypatch):
    saved_twice(tmp_path)

    def fail(*_):
        raise MemoryError("Unable to allocate 4.00 GiB")

    monkeypatch.setattr(module, "read_arrays", fail)
    with pytest.raises(Error, match=r"out of memory: Unable to allocate 4\.00 GiB"):
        opened(tmp_path).restore(like())


@pytest.mark.parametrize(("keep", "left"), [(0, 0), (1, 1), (5, 3)])
def test_so_many_damaged_checkpoints_are_kept_as_the_config_says(tmp_path, caplog, keep, left):
    saved_twice(tmp_path)
    for step in (3, 4, 5):
        damage(tmp_path / str(step - 1))
        again = opened(tmp_path, keep=2, keep_damaged=keep)
        again.restore(like())
        again.save(step, state(step))
        assert again.finish()
    assert len(list(tmp_path.glob("damaged-*"))) == left
    assert f"renamed to damaged-*: 4. The newest {keep} of those are kept" in caplog.text
    assert opened(tmp_path).restore(like())[0] == 5


@pytest.mark.parametrize(
    ("verified", "left"),
    [
        (6, [2, 4, 6]),  # nothing is newer
        (4, [2, 4]),
        (3, [2]),
        (1, [2]),  # the checkpoint of before is not kept any more, so the oldest stays
        (0, []),  # the run began here: it can begin again
    ],
)
def test_checkpoints_since_the_last_good_check_are_distrusted(tmp_path, verified, left):
    saving = opened(tmp_path, keep=10)
    for step in (2, 4, 6):
        saving.save(step, state(step))
    saving.distrust(verified)
    assert opened(tmp_path).steps() == left
    aside = {2, 4, 6} - set(left)
    assert {folder.name for folder in tmp_path.glob("suspect-*")} == {f"suspect-{s}" for s in aside}
    found = opened(tmp_path).restore(like())
    assert (found and found[0]) == (left[-1] if left else None)


def test_a_read_that_fails_once_is_tried_again(tmp_path, monkeypatch, caplog):
    saved_twice(tmp_path)
    reads, read_arrays = [], module.read_arrays

    def stumbling(folder, *arguments):
        reads.append(folder)
        if len(reads) == 1:
            raise OSError("the disk\nis away")
        return read_arrays(folder, *arguments)

    monkeypatch.setattr(module, "read_arrays", stumbling)
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert opened(tmp_path).restore(like())[0] == 2
    assert "step 2 failed (OSError: the disk); retrying once" in caplog.text


def averaging(value):
    averages = {"a/b/weight": jnp.full((64, 64), -value, jnp.float32)}
    return {
        **state(value),
        "ema": averages,
        "variables": {"router/bias": jnp.full(5, value)},
        "optimizer": ({"a/b/weight": jnp.zeros((64, 64))},),
    }


def wanted(shape=(64, 64), **more):
    devices = np.array(jax.devices()[:2])
    split = jax.sharding.NamedSharding(
        jax.sharding.Mesh(devices, ("fsdp",)), jax.sharding.PartitionSpec("fsdp")
    )
    weight = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=split)
    return {"a/b/weight": weight, **more}


def test_parameters_alone_come_straight_to_their_shards(tmp_path):
    saved_twice(tmp_path)
    adapter = like()["params"]["c"]
    step, arrays = opened(tmp_path).restore_parameters(wanted(**{"a/b/adapter": adapter}))
    assert step == 2
    assert list(arrays) == ["a/b/weight"], "what is not saved is left out"
    weight = arrays["a/b/weight"]
    assert weight.sharding == wanted()["a/b/weight"].sharding
    assert weight.dtype == jnp.bfloat16
    np.testing.assert_array_equal(weight, np.full((64, 64), 2.0))


def test_averaged_parameters_are_restored_if_there_are_averages(tmp_path):
    saved_twice(tmp_path, averaging)
    one = like()["params"]["c"]
    more = {"c": one, "router/bias": jax.ShapeDtypeStruct((5,), jnp.int32, sharding=one.sharding)}
    _, arrays = opened(tmp_path).restore_parameters(wanted(**more))
    np.testing.assert_array_equal(arrays["a/b/weight"], np.full((64, 64), -2.0))
    np.testing.assert_array_equal(arrays["c"], np.arange(3.0), "a frozen one has no average")
    np.testing.assert_array_equal(arrays["router/bias"], np.full(5, 2))


def test_parameters_of_another_shape_are_refused_with_both_shapes(tmp_path):
    saved_twice(tmp_path)
    expected = r"a/b/weight: its shape in .*2 is \(64, 64\), but this model expects \(64, 32\)"
    with pytest.raises(ConfigError, match=expected):
        opened(tmp_path).restore_parameters(wanted((64, 32)))


def test_parameters_of_another_model_are_refused_with_the_nearest(tmp_path):
    saved_twice(tmp_path)
    struct = wanted()["a/b/weight"]
    with pytest.raises(
        ConfigError, match=r"has no parameter of this model; 'a/b/wait'.*'a/b/weight'"
    ):
        opened(tmp_path).restore_parameters({"a/b/wait": struct})


def test_no_checkpoint_means_no_parameters(tmp_path):
    assert opened(tmp_path).restore_parameters(wanted()) is None


def test_only_damaged_checkpoints_are_an_error_that_says_what_to_do(tmp_path):
    saving = opened(tmp_path)
    saving.save(1, state(1))
    assert saving.finish()
    for file in (tmp_path / "1").rglob("*"):
        if file.is_file() and file.name != "_CHECKPOINT_METADATA":
            file.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"No checkpoint in .* can be read .*Restore one"):
        opened(tmp_path).restore(like())


def test_a_full_disk_is_reported_and_the_next_save_tries_again(tmp_path, caplog):
    saving = opened(tmp_path)
    saving.save(1, state(1))
    saving.finish()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # No file may grow past 100 bytes: writes fail as they do on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        with caplog.at_level(logging.WARNING, "dovetail"):
            saving.save(2, state(2))
            saving.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, previous)
    assert "Saving step 2 failed" in caplog.text
    assert saving.steps() == [1]
    saving.save(3, state(3))
    assert saving.finish()
    assert opened(tmp_path).restore(like())[0] == 3


@pytest.mark.parametrize("objects", [False, True])
def test_a_save_whose_digests_cannot_be_read_has_failed(tmp_path, monkeypatch, caplog, objects):
    """As when a process is lost whose collectives compute them."""

    def fail(computed):
        raise RuntimeError("Gloo AllGather failed: closed")

    store = ObjectStore.Config(url=f"file://{tmp_path}/objects")
    saving = opened(tmp_path / "run", **({"store": store} if objects else {}))
    saving.start(Agreement(), take_life(tmp_path / "lives"))
    monkeypatch.setattr("dovetail.runtime.checkpoints.saving.read_digests", fail)
    with caplog.at_level(logging.WARNING, "dovetail"):
        saving.save(1, state(1))
        assert not saving.finish()
    assert re.search("Saving step 1 failed.*Gloo AllGather failed", caplog.text)


REMOVED = """
import pathlib, shutil, sys
import jax.numpy as jnp
from dovetail.runtime import Checkpointer

folder = pathlib.Path(sys.argv[1])
state = {"params": {f"{i}": jnp.full((400, 400), float(i)) for i in range(30)}}
for _ in range(4):
    saving = Checkpointer.Config().build()
    saving.open(folder)
    saving.save(1, state)
    shutil.rmtree(folder, ignore_errors=True)
    saving.finish()
    shutil.rmtree(folder, ignore_errors=True)
"""


def test_a_save_into_a_removed_folder_prints_no_traceback(tmp_path):
    """Some arrays are still being written when the first one fails."""
    command = [sys.executable, "-c", REMOVED, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Saving step 1 failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_interrupted_saves_left_goes_and_all_else_stays(tmp_path):
    saved_twice(tmp_path)
    for name in ("3.orbax-checkpoint-tmp", "3", "damaged-1", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text")
    saving = opened(tmp_path)
    saving.save(4, state(4))
    assert saving.finish()
    there = {entry.name for entry in tmp_path.iterdir()}
    assert {"damaged-1", "notes"} < there
    assert not {"3.orbax-checkpoint-tmp", "3"} & there


def test_it_refuses_useless_numbers():
    with pytest.raises(ConfigError, match=r"^every: expected 1 or more, got 0"):
        Checkpointer.Config(every=0).build()
