"""When checkpoints are saved, and which are kept."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from dovetail.config import ConfigError
from dovetail.runtime import Checkpointer
from dovetail.runtime.checkpoints.intervals import SaveInterval


class Clock:
    """A host's clock, and a stand-in for the agreement of two hosts."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, 0

    def __call__(self) -> float:
        return self.now

    def gather(self, _: str, value: Any) -> list[Any]:
        self.asked += 1
        return [value, -1.0]


def saved_steps(
    interval: SaveInterval, clock: Clock, seconds_per_step: float, to: int
) -> list[int]:
    found = []
    for step in range(1, to + 1):
        clock.now += seconds_per_step
        if interval.due(step):
            found.append(step)
    return found


def test_saves_by_steps_alone_ask_nobody() -> None:
    clock = Clock()
    assert saved_steps(SaveInterval(4, None, clock.gather, clock), clock, 1.0, 12) == [4, 8, 12]
    assert clock.asked == 0


@pytest.mark.parametrize("seconds", [0.05, 1.0, 30.0])
def test_saves_by_time_come_on_time_and_ask_seldom(seconds: float) -> None:
    clock = Clock()
    steps = int(3600 / seconds)
    saves = saved_steps(SaveInterval(10**9, 10.0, clock.gather, clock), clock, seconds, steps)
    assert 4 <= len(saves) <= 6
    between = [b - a for a, b in itertools.pairwise(saves)]
    assert all(600 <= gap * seconds < 600 + 2 * seconds for gap in between)
    assert clock.asked < 60 * len(saves)


def test_saves_by_time_continue_after_a_rollback() -> None:
    clock = Clock()
    interval = SaveInterval(10**9, 10.0, clock.gather, clock)
    saved_steps(interval, clock, 1.0, 5000)
    clock.now += 1  # the steps from 1 on are trained again
    again = saved_steps(interval, clock, 1.0, 1500)
    assert len(again) >= 2


def test_process_0_decides() -> None:
    """A process whose own clock stands still saves when process 0 does."""
    clock, other = Clock(), Clock()

    def of_process_0(_: str, __: Any) -> list[Any]:
        return [clock.now - of_process_0.last]  # type: ignore[attr-defined]

    of_process_0.last = 0.0  # type: ignore[attr-defined]
    first = SaveInterval(1000, 1.0, clock.gather, clock)
    second = SaveInterval(1000, 1.0, of_process_0, other)
    for step in range(1, 200):
        clock.now += 1.0
        here = first.due(step)
        assert second.due(step) == here, step
        if here:
            of_process_0.last = clock.now  # type: ignore[attr-defined]


def opened(folder: Path, **values: Any) -> Checkpointer:
    checkpointer: Checkpointer = Checkpointer.Config(every=1, **values).build()
    checkpointer.open(folder)
    return checkpointer


def train(checkpointer: Checkpointer, losses: dict[int, float | None]) -> list[int]:
    for step, loss in losses.items():
        if loss is not None:
            checkpointer.evaluated(step, {"held_out/loss": loss, "held_out/sample": "a text"})
        checkpointer.save(step, {"w": jnp.ones(3), "step": jnp.int32(step)})
    assert checkpointer.finish()
    return checkpointer.steps()


LOSSES = {1: 3.0, 2: 1.0, 3: None, 4: 2.0, 5: float("nan"), 6: 2.5}


@pytest.mark.parametrize(("mode", "best"), [("min", 2), ("max", 1)])
def test_the_best_is_kept(tmp_path: Path, mode: str, best: int) -> None:
    checkpointer = opened(tmp_path, keep=2, keep_best="held_out/loss", best_mode=mode)
    assert train(checkpointer, LOSSES) == [best, 5, 6]


def test_without_it_only_the_newest_are(tmp_path: Path) -> None:
    assert train(opened(tmp_path, keep=2), LOSSES) == [5, 6]


def test_a_restarted_run_remembers_the_best(tmp_path: Path) -> None:
    values: dict[str, Any] = {"keep": 1, "keep_best": "held_out/loss"}
    assert train(opened(tmp_path, **values), {1: 1.0, 2: 2.0}) == [1, 2]
    assert train(opened(tmp_path, **values), {3: 1.5, 4: 3.0}) == [1, 4]


@pytest.mark.parametrize("values", [{"best_mode": "lowest"}, {"minutes": 0.0}])
def test_what_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^(best_mode|minutes): expected"):
        Checkpointer.Config(**values).build()


@pytest.mark.slow
def test_a_bound_bounds_the_memory_of_a_save() -> None:
    """Peaks of processes vary, so the bounds are far apart: 0.15 and 4 GiB for half a GiB."""
    script = Path(__file__).parents[2] / "benchmarks" / "save_memory.py"
    words = [sys.executable, str(script), "--gib", "0.5", "--bounds", "0.15", "4"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])["bounds"]
    assert found["4.0 GiB"]["save_gib"] > 0.7
    assert found["0.15 GiB"]["save_gib"] < 0.45
    assert found["0.15 GiB"]["restore_gib"] < 0.3
