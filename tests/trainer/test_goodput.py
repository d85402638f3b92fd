"""The goodput of real runs: every second of the training loop is accounted, in any life."""

import json
import shutil
import time

import pytest

from dovetail.config import Component
from dovetail.runtime import Continue, JsonLines, OpenMetrics, RollBack, StepEnd
from dovetail.runtime.goodput import goodput
from dovetail.trainer import HeldOutLoss, Hooks


def train(config, folder):
    folder.mkdir(exist_ok=True)
    trainer, began = config.build(), time.monotonic()
    trainer.train(folder, Hooks(started=began))
    return time.monotonic() - began


def entries(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_second_of_a_resumed_run_is_accounted(config, tmp_path):
    run = tmp_path / "run"
    config.evaluators = {"held_out": HeldOutLoss.Config(num_batches=1)}
    config.writers = {"json": JsonLines.Config(), "prometheus": OpenMetrics.Config()}
    first = train(config, run)
    found = goodput(run)
    assert found.wall == pytest.approx(first, abs=0.3)
    for name in ("step", "input", "save", "evaluate", "start", "compile"):
        assert found.seconds[name] > 0, name
    assert found.seconds["rolled_back"] == found.seconds["idle"] == 0
    assert (found.steps, found.lives) == (12, 1)
    last = [entry for entry in entries(run) if "loss" in entry][-1]
    assert 0 < last["goodput"] < 1
    assert (
        f'dovetail_goodput{{run="run"}} {last["goodput"]!r}' in (run / "metrics.prom").read_text()
    )

    shutil.rmtree(run / "checkpoints" / "12-1")
    time.sleep(0.2)
    second = train(config, run)
    found = goodput(run)
    assert found.wall == pytest.approx(first + 0.2 + second, abs=0.5)
    assert found.seconds["idle"] == pytest.approx(0.2, abs=0.19)
    assert found.seconds["restore"] > 0
    assert found.seconds["rolled_back"] > 0, "steps 9 to 12"
    assert (found.steps, found.lives, found.repeated_steps) == (12, 2, 4)
    last = [entry for entry in entries(run) if "loss" in entry][-1]
    stepped = found.seconds["step"]
    assert last["goodput"] >= stepped / found.wall, "what follows the last step is no step"
    assert last["goodput"] == pytest.approx(stepped / (found.wall - _after_steps(run)), rel=0.1)


def _after_steps(run):
    """Returns the seconds of the last life after its last step."""
    lines = (run / "goodput" / "000002-0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    done = max(number for number, record in enumerate(records) if record.get("done"))
    return sum(sum(record["seconds"].values()) for record in records[done + 1 :])


class RollsBackOnce(Component):
    """Rolls back after step 7, the first time."""

    has_rolled_back = False

    def on_event(self, event):
        if isinstance(event, StepEnd) and event.step == 7 and not self.has_rolled_back:
            self.has_rolled_back = True
            return RollBack("A test.", skip_batch=False)
        return Continue()


def test_steps_that_a_rollback_repeats_are_not_productive(config, tmp_path):
    config.faults = RollsBackOnce.Config()
    wall = train(config, tmp_path / "run")
    found = goodput(tmp_path / "run")
    assert found.wall == pytest.approx(wall, abs=0.3)
    assert found.seconds["rolled_back"] > 0
    assert found.seconds["restore"] > 0
    assert (found.steps, found.lives, found.repeated_steps) == (12, 1, 2), "steps 5 and 6"
