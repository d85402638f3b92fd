"""find-python.sh takes the first Python that will do, and says of each other one what it lacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "find-python.sh"


def find_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the script where only the Pythons planted in `folder` can be found."""
    environment = {"PATH": str(folder), "HOME": str(folder)}
    command = ["/bin/sh", str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def plant(folder: Path, name: str, version: str = "3.12", able: str = "yes") -> Path:
    """Plants a command that answers the script's question as such a Python would."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{version.replace('.', ' ')} {able} {path}'\n")
    path.chmod(0o755)
    return path


def test_python3_is_taken_where_it_is_new_enough(tmp_path: Path) -> None:
    plant(tmp_path, "python3.13", "3.13")
    python = plant(tmp_path, "python3", "3.11")
    assert find_python(tmp_path).stdout == f"3.11 {python}\n"


def test_an_old_python3_is_passed_over_for_a_newer_one(tmp_path: Path) -> None:
    plant(tmp_path, "python3", "3.9")
    python = plant(tmp_path, "python3.12", "3.12")
    assert find_python(tmp_path).stdout == f"3.12 {python}\n"


def test_a_path_with_spaces_stays_whole(tmp_path: Path) -> None:
    python = plant(tmp_path / "my pythons", "python3")
    assert find_python(tmp_path / "my pythons").stdout == f"3.12 {python}\n"


def test_pythons_of_pyenv_are_found_behind_a_shim_that_refuses(tmp_path: Path) -> None:
    shim = plant(tmp_path, "python3.13")
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    python = plant(tmp_path / ".pyenv" / "versions" / "3.13.0" / "bin", "python3.13", "3.13")
    assert find_python(tmp_path, "python3.13").stdout == f"3.13 {python}\n"


@pytest.mark.parametrize(
    ("version", "able", "complaint"),
    [
        ("3.10", "yes", "python3: is Python 3.10"),
        ("2.7", "yes", "python3: is Python 2.7"),
        ("3.11", "no", "on Debian and Ubuntu: sudo apt install python3.11-venv"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, version: str, able: str, complaint: str) -> None:
    plant(tmp_path, "python3", version, able)
    run = find_python(tmp_path, "python3")
    assert run.returncode == 1
    assert complaint in run.stderr
    assert "make venv PYTHON=/path/to/python3.12" in run.stderr
    assert run.stdout == ""


def test_no_python_at_all(tmp_path: Path) -> None:
    run = find_python(tmp_path)
    assert run.returncode == 1
    assert "Dovetail needs Python 3.11 or newer" in run.stderr
    assert "python3.13: not found, or it does not run" in run.stderr


def test_a_real_python_answers() -> None:
    command = ["/bin/sh", str(SCRIPT), sys.executable]
    run = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=True)
    version, _, path = run.stdout.strip().partition(" ")
    assert version == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert path == sys.executable


def test_a_real_python_without_ensurepip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ensurepip.py").write_text("raise ImportError('not packaged here')")
    run = subprocess.run(
        ["/bin/sh", str(SCRIPT), sys.executable],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "without venv or ensurepip" in run.stderr
