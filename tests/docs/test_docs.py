"""The documents tell the truth: their code runs and prints what they say, their tree exists."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import read_blocks
from tests.docs.readme_tree import find_problems

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
SLOW = [
    name
    for name, path in zip(NAMES, DOCUMENTS, strict=True)
    if any(block.slow for block in read_blocks(path.read_text(encoding="utf-8"), name))
]


@pytest.mark.parametrize("name", NAMES)
def test_the_code_of_a_document_runs(name: str, tmp_path: Path) -> None:
    check_document(ROOT / name, tmp_path, seconds=600)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_slow_code_of_a_document_runs(name: str, tmp_path: Path) -> None:
    check_document(ROOT / name, tmp_path, "--slow", seconds=3600)


def test_the_tree_in_the_readme_is_the_tree_that_exists() -> None:
    problems = find_problems((ROOT / "README.md").read_text(encoding="utf-8"), ROOT)
    assert not problems, "the tree in README.md: " + "; ".join(problems)


def check_document(document: Path, folder: Path, *arguments: str, seconds: float) -> None:
    """Runs a document in a process of its own; fails with the document's line and its output."""
    command = [sys.executable, "-m", "tests.docs.run_document", str(document), *arguments]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=offline_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"{document.name} was not done after {seconds} s", pytrace=False)
    if process.returncode != 0:
        pytest.fail(output, pytrace=False)


def offline_environment() -> dict[str, str]:
    """Returns an environment with this Python's commands, no network, no colour, a fixed width."""
    nowhere = "http://127.0.0.1:9"
    return {
        # As in most people's shells, Python holds back what goes to a pipe.
        **{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        **dict.fromkeys(["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"], nowhere),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
