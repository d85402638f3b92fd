"""Type checkers understand configs: what a config builds, and every mistake in its fields."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent / "typing_samples"
ROOT = Path(__file__).parents[2]


def mypy_errors(file: Path) -> set[int]:
    done = _run("mypy", "--no-error-summary", "--hide-error-context", str(file))
    return {int(line) for line in re.findall(rf"{file.name}:(\d+): error", done.stdout)}


def basedpyright_errors(file: Path) -> set[int]:
    done = _run("basedpyright", "--outputjson", "--level", "error", str(file))
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {diagnostic["range"]["start"]["line"] + 1 for diagnostic in found}


def _run(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / tool), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def wrong_lines(file: Path) -> set[int]:
    lines = file.read_text().splitlines()
    return {number for number, line in enumerate(lines, start=1) if line.endswith("# wrong")}


@pytest.mark.slow
@pytest.mark.parametrize("errors", [mypy_errors, basedpyright_errors])
@pytest.mark.parametrize("name", ["accepted.py", "rejected.py"])
def test_checkers_find_the_planted_mistakes_and_no_others(
    errors: Callable[[Path], set[int]], name: str
) -> None:
    file = SAMPLES / name
    assert errors(file) == wrong_lines(file)


def test_the_samples_do_at_run_time_what_they_say() -> None:
    done = subprocess.run(
        [sys.executable, str(SAMPLES / "accepted.py")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout == "FeedForward 5\n", done.stderr
