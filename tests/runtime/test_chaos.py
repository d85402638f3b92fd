"""Chaos in short: real training, real faults, and a broken runtime that must fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.config import ConfigError
from dovetail.runtime.chaos import (
    CONTROLS,
    KINDS,
    Chaos,
    Result,
    Trial,
    long_trials,
    report,
    select_trials,
    short_trials,
    summary,
    trial,
)
from dovetail.runtime.chaos.judging import Delays
from dovetail.runtime.points import POINTS
from tests.runtime.strace import install_strace


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


LONGER = (
    trial("held GIL", 0, "step"),
    trial("kill in data preparation", 0),
    trial("other number of devices", 0),
)


@pytest.mark.slow
@pytest.mark.parametrize("trial", [*short_trials(0), *LONGER], ids=str)
def test_a_run_survives(scratch: Path, trial: Trial) -> None:
    install_strace()
    result = Chaos(scratch).run(trial)
    assert result.problem is None
    assert result.injected
    assert result.noticed or not KINDS[trial.kind].notice


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutation", "problem"),
    [
        ("no digest", r"differs in the final state|the loss of step \d+ is|nobody noticed"),
        ("no vote", r"differs in the final state|the loss of step \d+ is|lost another process"),
        ("no step in the manifest", r"the loss of step \d+ is|nobody noticed"),
        ("no fencing", r"was not refused|differs in the final state"),
        ("no fsync", r"was saved, but it continued from step|tokenizer.json is damaged"),
    ],
)
def test_a_broken_runtime_does_not(scratch: Path, mutation: str, problem: str) -> None:
    """It fails for want of the protection, not for another reason."""
    install_strace()
    result = Chaos(scratch, mutation).run(trial(CONTROLS[mutation], 0))
    assert result.injected
    assert re.search(problem, str(result.problem)), (result.problem, result.output)


def test_all_controls_are_tried() -> None:
    (marks,) = (m for m in test_a_broken_runtime_does_not.pytestmark if m.name == "parametrize")
    assert {mutation for mutation, _ in marks.args[1]} == set(CONTROLS)


def test_the_long_form_hits_every_kind_and_every_point() -> None:
    trials = long_trials(0, 300)
    assert len(trials) == 300
    assert {trial.kind for trial in trials} == set(KINDS)
    assert {trial.point for trial in trials} | {"run finished"} == set(POINTS)
    assert long_trials(0, 300) == trials, "a seed repeats it"
    assert long_trials(1, 300) != trials


def test_the_short_form_has_fourteen_kinds() -> None:
    assert len({trial.kind for trial in short_trials(3)}) >= 14


def test_trials_are_selected_by_kind() -> None:
    assert select_trials(3) == short_trials(3)
    assert select_trials(3, count=40) == long_trials(3, 40)
    chosen = select_trials(3, kinds=["kill", "held GIL"])
    assert {each.kind for each in chosen} == {"kill", "held GIL"}
    assert chosen[-1] == trial("held GIL", 3), "the short form has none"
    assert select_trials(3, control="no digest") == [trial(CONTROLS["no digest"], 3)]
    with pytest.raises(ConfigError, match="expected 1 or more, got 0"):
        select_trials(3, count=0)


def test_a_summary_counts_by_kind() -> None:
    kill = trial("kill", 0, "step")
    results = [
        Result(kill, True, 2, 3, 9.0, Delays(1.0, 2.0, 3.0), None, "supervisor: ..."),
        Result(kill, True, 2, 5, 9.0, Delays(2.0, 3.0, 9.0), "the loss is missing", ""),
        Result(kill, False, 1, 0, 9.0, Delays(), None, ""),
    ]
    spreads = ["1.5, 2.0", "2.5, 3.0", "6.0, 9.0"]
    assert summary(results) == [["kill", "1", "2 of 3", "1 of 2", "1", "5", *spreads]]


def test_a_report_says_what_was_not_survived() -> None:
    kill = trial("kill", 7, "step")
    good = Result(kill, True, 2, 3, 9.0, Delays(1.0, 2.0, 3.0), None, "supervisor: ...")
    bad = Result(kill, False, 1, 0, 9.0, Delays(), None, "")
    text = report.as_text([good] * 10, 7)
    assert text.splitlines()[0].startswith("kind of fault  points")
    assert text.endswith("With 95% confidence, fewer than 25.9% of such faults lose a run.")
    lines = report.as_text([good, bad], 7, with_points=True).splitlines()
    assert lines[0] == f"{kill}, seed 7: the fault was not injected"
    assert lines[1].startswith("kind of fault  point ")
    assert lines[-1] == "1 of 2 faults survived without loss (seed 7)"


def test_results_in_a_file_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = []

    def pretend(_: Chaos, trial: Trial) -> Result:
        run.append(trial)
        return Result(trial, True, 2, 1, 9.0, Delays(1.0, 2.0, None), None, "supervisor: ...")

    monkeypatch.setattr(Chaos, "run", pretend)
    file = tmp_path / "results.jsonl"
    argv = ["chaos", "--kinds", "kill,segfault", "--results", str(file)]
    assert main([*argv, "--trials", "5"]) == 0
    assert len(run) == 6, "five of the first kind, and one of the other"
    capsys.readouterr()
    assert main([*argv, "--trials", "7"]) == 0
    assert len(run) == 8
    shown = capsys.readouterr().out
    assert "8 of 8 faults survived" in shown
    assert "fewer than 31.2% of such faults lose a run" in shown
    before = file.read_text()
    for line, words in (
        ("{}", "line 9 is not a result of `dovetail chaos`"),
        (before.splitlines()[0].replace('"code": {', '"code": {"x": 1, '), "line 9 was obtained"),
    ):
        file.write_text(before + line + "\n")
        assert main(argv) == 2
        assert f"{file}: {words}" in capsys.readouterr().err
    assert main([*argv, "--control", "no digest"]) == 2
    assert "leave it out with --control" in capsys.readouterr().err


def test_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--kinds", "kil"]) == 2
    assert "there is no 'kil'. Did you mean 'kill'" in capsys.readouterr().err
    assert main(["chaos", "--control", "no digst"]) == 2
    assert "there is no 'no digst'. Did you mean 'no digest'" in capsys.readouterr().err
