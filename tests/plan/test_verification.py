"""Comparing a run with its plan, and the history of ratios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.config import ConfigError, to_text
from dovetail.experiments import find_experiment
from dovetail.plan import Planner, ProgramCache, VerificationHistory, run_planner, verify
from dovetail.run import Run
from dovetail.targets import parse_target


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    config = find_experiment("llama2-7b").tiny()
    cache = ProgramCache(tmp_path_factory.mktemp("programs"))
    return Planner("tiny", config, parse_target("cpu-8"), cache)


def run(folder: Path, seconds: list[float], memory: float = 0.5) -> Run:
    lines = [
        {"step": step, "step_seconds": value, "step_memory_gb": memory}
        for step, value in enumerate(seconds, start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "run.json").write_text("{}")
    return Run(folder)


def test_a_run_is_compared_with_its_plan(planner: Planner, tmp_path: Path) -> None:
    plan = planner.compiled_plan()
    slow = 2 * plan.step_seconds
    found = verify(run(tmp_path, [99.0, 99.0, 99.0, slow, slow, slow]), planner)
    assert found.time_ratio == pytest.approx(2.0), "the first steps warm up"
    planned = plan.memory.activations + plan.memory.temporaries
    assert found.memory_ratio == pytest.approx(0.5e9 / 8 / planned)
    history = VerificationHistory(tmp_path / "kept" / "verified.json")
    assert history.time("cpu") is None
    history.add(found)
    history.add(found)
    assert history.time("cpu") == (pytest.approx(2.0), 1), "a run counts once"
    assert history.time("tpu-v5p") is None


def test_a_run_with_too_few_metrics_is_an_error(planner: Planner, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than 3 steps"):
        verify(run(tmp_path, [1.0, 1.0]), planner)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match="got 0 lines"):
        verify(Run(tmp_path), planner)


def test_a_damaged_history_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "verified.json"
    for text in ("{", "{}", "[1, 2]", '[{"chip": "cpu"}]'):
        path.write_text(text)
        assert VerificationHistory(path).time("cpu") is None


def test_a_run_is_planned_on_the_machine_that_it_ran_on(tmp_path: Path) -> None:
    def planner_of(given: str | None, **about: str) -> Planner:
        (tmp_path / "run.json").write_text(json.dumps(about))
        (tmp_path / "config.txt").write_text(to_text(find_experiment("llama2-7b").tiny()))
        return run_planner(Run(tmp_path), given)

    assert planner_of(None, target="cpu-8", experiment="tiny").name == "tiny"
    with pytest.raises(ConfigError, match="on cpu-8, not on cpu-4"):
        planner_of("cpu-4", target="cpu-8")
    with pytest.raises(ConfigError, match="the run was on TPU v5p and had no --target"):
        planner_of(None, device="TPU v5p")
