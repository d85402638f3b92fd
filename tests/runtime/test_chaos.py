"""Chaos in short: real training, real faults, and a broken runtime that must fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.runtime.chaos import CONTROLS, KINDS, Chaos, long_trials, short_trials, trial
from dovetail.runtime.points import POINTS


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "point"),
    [
        ("kill", "save written"),
        ("kill", "manifest renamed"),
        ("kill", "restore read"),
        ("held GIL", "step"),
        ("full disk", "save written"),
        ("SIGUSR1", "step"),
        ("flipped bit", None),
    ],
)
def test_a_run_survives(scratch: Path, kind: str, point: str | None) -> None:
    result = Chaos(scratch).run(trial(kind, 0, point))
    assert result.problem is None
    assert result.injected
    assert result.noticed or not KINDS[kind].restarts


@pytest.mark.slow
@pytest.mark.parametrize("mutation", [name for name, (_, count) in CONTROLS.items() if count == 1])
def test_a_broken_runtime_does_not(scratch: Path, mutation: str) -> None:
    kind, processes = CONTROLS[mutation]
    result = Chaos(scratch, mutation).run(trial(kind, 0, processes=processes))
    assert result.injected
    assert result.problem is not None


def test_the_long_form_hits_every_kind_and_every_point() -> None:
    trials = long_trials(0, 300)
    assert len(trials) == 300
    assert {trial.kind for trial in trials} == set(KINDS)
    assert {trial.point for trial in trials} | {"run finished"} == set(POINTS)
    assert long_trials(0, 300) == trials, "a seed repeats it"
    assert long_trials(1, 300) != trials


def test_the_short_form_has_every_kind() -> None:
    assert {trial.kind for trial in short_trials(3)} == set(KINDS)


def test_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--kinds", "kil"]) == 2
    assert "there is no 'kil'. Did you mean 'kill'" in capsys.readouterr().err
