"""A state that became bad in memory, though it is finite, never becomes the newest checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail.runtime import Checkpointer, ReplayFaults, SkipSpikes, suspects, take_life
from dovetail.runtime.chaos.values import EXPONENT_BIT, flipped_bit
from dovetail.trainer import FaultError, NonFiniteError, loop
from tests.trainer import conftest
from tests.trainer.test_trainer import losses, train

corpus, small = conftest.corpus, conftest.config


@contextmanager
def flipped_before(step: int) -> Iterator[None]:
    """Flips an exponent bit of a parameter before a step, once."""
    seen = 0

    def damage(name: str, value: Any) -> Any:
        nonlocal seen
        seen += name == "state"
        return flipped_bit(value, EXPONENT_BIT) if (name, seen) == ("state", step) else value

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "pass_through", damage)
        yield


@pytest.fixture
def config(small: Any) -> Any:
    return small.clone(checkpointer=Checkpointer.Config(every=4))


def test_after_a_halt_the_last_verified_state_stands(config: Any, tmp_path: Path) -> None:
    train(config, tmp_path / "undisturbed")
    run = tmp_path / "run"
    with (
        flipped_before(7),
        pytest.raises(NonFiniteError, match="The newest checkpoint is from before"),
    ):
        train(config, run)
    assert config.build().saved_step(run) == 4
    train(config, run)
    assert losses(run) == losses(tmp_path / "undisturbed")


def test_a_replay_from_a_checkpoint_blames_the_hardware(config: Any, tmp_path: Path) -> None:
    config.set(faults=ReplayFaults.Config())
    with (
        flipped_before(7),
        pytest.raises(FaultError, match=r"two different results .* a fault of the hardware"),
    ):
        train(config, tmp_path / "run")


def test_a_policy_that_skips_goes_to_a_checkpoint_the_second_time(
    config: Any, tmp_path: Path
) -> None:
    """The state in memory is trusted once: it may be the batch."""
    config.set(faults=SkipSpikes.Config())
    with flipped_before(7):
        outcome = train(config, tmp_path / "run")
    assert outcome.step == config.steps
    assert (tmp_path / "run" / "skips.json").read_text().count(",") <= 3, "at most two batches"


def test_checkpoints_after_which_runs_halt_are_suspect(tmp_path: Path) -> None:
    """Also several of them: each is given up after two lives, and none is tried again."""

    def live(restored: int, how: str | None) -> set[int]:
        life = take_life(tmp_path)
        found = suspects(tmp_path, life.number)
        life.resumed_from(restored)
        life._record(reached=restored + 1)
        if how is not None:
            life.ended(how)
        return found

    assert live(40, "NonFiniteError") == set()
    assert live(40, None) == set()
    assert live(20, "NonFiniteError") == {40}
    assert live(20, "NonFiniteError") == {40}
    assert live(10, "stopped") == {20, 40}
    assert live(10, None) == set(), "an orderly end"
