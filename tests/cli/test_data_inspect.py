"""`dovetail data inspect`: of an experiment and of a run, in colour on a terminal, and refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dovetail.api import experiment
from dovetail.cli import main
from dovetail.runtime import FaultLog

TINY = [
    "model.width=16",
    "model.decoder.stack.num_layers=1",
    "model.decoder.stack.layer.attention.num_heads=2",
    "model.decoder.stack.layer.feed_forward.hidden=16",
    "input.tokenizer=ByteTokenizer",
    "input.sequence_length=32",
    "input.batch_size=8",
    "mesh.fsdp=1",
    "mesh.data=-1",
    "evaluators={}",
]


@pytest.fixture
def notes(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of texts, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "notes"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.md").write_text(f"note {number} is short. " * (1 + number % 5))
    return folder


def inspect(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["data", "inspect", *argv]) == 0
    return capsys.readouterr().out


def test_an_experiment_with_own_files(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = inspect(capsys, "tiny-lm", "--data", "notes", "--rows", "1", *TINY)
    assert "train split: 257 tokens in the vocabulary" in text
    assert "is short." in text
    assert "=== row 0 of step 0, notes" in text
    assert "\x1b" not in text
    table = inspect(capsys, "tiny-lm", "--data", "notes", "--step", "2", *TINY)
    assert table.startswith("the rows of step 2\nrow  source  document")
    assert "is short" in table
    decoded = inspect(capsys, "tiny-lm", "--data", "notes", "--step", "2", "--text", *TINY)
    assert decoded.count("=== row") == 8
    facts = json.loads(inspect(capsys, "tiny-lm", "--data", "notes", "--json", *TINY))
    assert facts["sources"][0]["name"] == "notes"
    assert len(facts["rows"]) == 2


def test_a_terminal_has_colours(
    notes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    coloured = inspect(capsys, "tiny-lm", "--data", "notes", *TINY)
    assert "\x1b[" in coloured
    assert "⟦" not in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = inspect(capsys, "tiny-lm", "--data", "notes", *TINY)
    assert "\x1b[" not in plain
    assert "⟦" in plain


def test_a_run_shows_the_data_that_it_was_trained_on(
    notes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = experiment("tiny-lm").data("notes").override(*TINY)
    run = changed.train(steps=2, folder="runs/mine", progress=False)
    before = inspect(capsys, "mine", "--step", "4")
    (notes / "0.md").write_text("changed since, and much longer than it was " * 9)
    assert inspect(capsys, "runs/mine", "--step", "4") == before
    FaultLog(run.path).write_skips(((1, 3),))
    skipping = inspect(capsys, "mine", "--step", "2")
    assert skipping.splitlines()[0] == "the rows of step 2, after 2 skipped batches"
    assert skipping.splitlines()[1:] == before.splitlines()[1:]
    (run.path / "data").rename(notes.parent / "gone")
    monkeypatch.setenv("XDG_CACHE_HOME", str(notes.parent / "other"))
    assert main(["data", "inspect", "mine"]) == 2
    assert "the corpus has changed since this run was trained" in capsys.readouterr().err


def test_mistakes(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ["data", "inspect", "tiny-lm", "--data", "notes", *TINY]
    for options, message in (
        (["--step", "-1"], "--step: expected 0 or more, got -1"),
        (["--rows", "-1"], "--rows: expected 0 or more, got -1"),
        (["--split", "held_out", "--step", "99"], "--step: the held_out split has"),
    ):
        assert main([*own, *options]) == 2
        assert message in capsys.readouterr().err
    assert main(["data", "inspect", "tiny-lm", "--data", " , "]) == 2
    assert "--data: expected a file, a folder" in capsys.readouterr().err
