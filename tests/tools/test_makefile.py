"""The Makefile picks its environment, reinstalls only when it must, and lists its commands."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the Makefile needs, with no environment yet."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs make as from a terminal, not as from the make that runs the tests."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON", "VENV", "LOCKED", "ARGS")
    }
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def plant_environment(folder: Path, *stamps: str) -> None:
    """Plants an environment that is newer than pyproject.toml and has these stamps."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    for stamp in stamps:
        (folder / stamp).touch()


def test_every_command_is_listed_with_what_it_does(project: Path) -> None:
    listed = {line.split()[1] for line in make(project).stdout.splitlines()}
    assert listed == {
        *("help", "quickstart", "test", "sweep", "slow", "parity", "compile", "lint"),
        *("format", "golden", "venv", "lock", "clean"),
    }


def test_a_fresh_clone_makes_the_environment_first(project: Path) -> None:
    plan = make(project, "--dry-run", "quickstart").stdout
    assert plan.index("-m venv") < plan.index("tools/install.py") < plan.index("train tiny-lm")
    assert "--extras dev" not in plan
    assert "--extras dev" in make(project, "--dry-run", "test").stdout


def test_the_second_time_nothing_is_installed(project: Path) -> None:
    plant_environment(project / ".venv", ".dovetail-installed", ".dovetail-installed-dev")
    assert "install.py" not in make(project, "--dry-run", "test", "quickstart").stdout


def test_a_change_of_pyproject_installs_again(project: Path) -> None:
    plant_environment(project / ".venv", ".dovetail-installed", ".dovetail-installed-dev")
    later = (project / ".venv" / ".dovetail-installed").stat().st_mtime + 10
    os.utime(project / "pyproject.toml", (later, later))
    assert "install.py" in make(project, "--dry-run", "test").stdout


def test_an_environment_made_by_hand_is_kept_and_completed(project: Path) -> None:
    plant_environment(project / ".venv")
    plan = make(project, "--dry-run", "venv").stdout
    assert "-m venv" not in plan
    assert "tools/install.py" in plan


def test_an_environment_whose_python_is_gone_is_made_again(project: Path) -> None:
    plant_environment(project / ".venv", ".dovetail-installed", ".dovetail-installed-dev")
    (project / ".venv" / "pyvenv.cfg").touch()
    (project / ".venv" / "bin" / "python").unlink()
    (project / ".venv" / "bin" / "python").symlink_to("/nonexistent/python")
    plan = make(project, "--dry-run", "test").stdout
    assert "-m venv --clear .venv" in plan
    assert "tools/install.py" in plan


def test_each_python_has_its_own_environment(project: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    plan = make(project, "--dry-run", "test", f"PYTHON={sys.executable}").stdout
    assert f".venv-{version}/bin/python -m pytest" in plan


def test_a_python_that_will_not_do_stops_at_once(project: Path) -> None:
    run = make(project, "test", "PYTHON=/nonexistent/python")
    assert run.returncode == 2
    assert "/nonexistent/python: not found, or it does not run" in run.stderr


def test_locked_and_newest_versions_do_not_pass_for_each_other(project: Path) -> None:
    plant_environment(project / ".venv", ".dovetail-installed", ".dovetail-installed-dev")
    plan = make(project, "--dry-run", "venv", "LOCKED=1").stdout
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"--constraint locks/requirements-{version}.txt --extras dev" in plan
