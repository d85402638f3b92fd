"""Checkpoints: whole or not at all, never in the way of training."""

import logging
import resource
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.runtime import Checkpointer, abstract_state


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


def test_a_damaged_checkpoint_is_passed_over_loudly(tmp_path, caplog):
    saving = opened(tmp_path)
    saving.save(1, state(1))
    saving.save(2, state(2))
    assert saving.finish()
    for file in (tmp_path / "2").rglob("*"):
        if file.is_file() and file.parent.name == "d":
            file.write_bytes(b"damaged")
    with caplog.at_level(logging.WARNING, "dovetail"):
        again = opened(tmp_path)
        step, _ = again.restore(like())
    assert step == 1
    assert "The checkpoint of step 2 cannot be read" in caplog.text
    again.save(2, state(2))
    assert again.finish(), "its step can be saved again"
    assert opened(tmp_path).restore(like())[0] == 2


def test_only_damaged_checkpoints_are_an_error_that_says_what_to_do(tmp_path):
    saving = opened(tmp_path)
    saving.save(1, state(1))
    assert saving.finish()
    for file in (tmp_path / "1").rglob("*"):
        if file.is_file() and file.name != "_CHECKPOINT_METADATA":
            file.write_bytes(b"")
    with pytest.raises(
        ConfigError, match=r"No checkpoint in .* can be read .*Move the folder away"
    ):
        opened(tmp_path).restore(like())


def test_a_full_disk_is_reported_and_the_next_save_tries_again(tmp_path, caplog):
    saving = opened(tmp_path)
    saving.save(1, state(1))
    saving._finish_pending()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # No file may grow past 100 bytes: writes fail as they do on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        with caplog.at_level(logging.WARNING, "dovetail"):
            saving.save(2, state(2))
            saving._finish_pending()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, previous)
    assert "Saving step 2 failed" in caplog.text
    assert saving.steps() == [1]
    saving.save(3, state(3))
    assert saving.finish()
    assert opened(tmp_path).restore(like())[0] == 3


def test_it_refuses_useless_numbers():
    with pytest.raises(ConfigError, match="every=0"):
        Checkpointer.Config(every=0).build()
