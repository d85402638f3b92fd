"""`dovetail modularity`: a small survey as a person runs it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli import main

SMALL = ["--experiment", "tiny-lm", "--experiment", "llama3-8b", "--feature", "capacity"]


@pytest.mark.sweep
def test_a_small_survey(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["modularity", *SMALL, "--feature", "qk-norm", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "experiments": 2,
        "features": 2,
        "pairs": 4,
        "not_applicable": 2,
        "built": 2,
        "traced": 2,
        "executed": 1,
        "failing": 0,
        "lines_changed": 0,
    }
    assert main(command[:-1]) == 0
    told = capsys.readouterr()
    assert "0 fail; 0 lines in other files must change" in told.out
    assert "capacity does not apply to 2 experiments" in told.out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--feature", "rop"], "rope"),
        (["--experiment", "tiny-ml"], "tiny-lm"),
        (["--jobs", "0"], "--jobs: expected 1 to 1,024, got 0"),
        (["--import", "tests.shape_suffixes"], "--import tests.shape_suffixes: it registers no f"),
        (["--import", "mine", "--write", "page"], "--write describes our own features"),
    ],
)
def test_bad_input_ends_in_one_message(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["modularity", *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.sweep
def test_what_was_found_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.modularity.growth.lines_at", _no_lines)
    assert main(["modularity", *SMALL, "--write", str(tmp_path)]) == 0
    page = (tmp_path / "modularity-measured.md").read_text()
    assert "0 lines in other files must change" in page
    assert (tmp_path / "modularity-measured.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "modularity-measured.json").read_text())["growth"]


def _no_lines(name: str, axis: str, size: int) -> list[int]:
    return [0, 0]
