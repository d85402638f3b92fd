"""The suite's own promises: warnings are errors, slow tests wait to be asked, eight devices."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

ROOT = Path(__file__).resolve().parent.parent

LIBRARY = """
import warnings
def warn():
    warnings.warn("planted", DeprecationWarning)
def warn_the_caller():
    warnings.warn("planted", DeprecationWarning, stacklevel=2)
"""

TESTS = """
import pytest
import dovetail.room, dovetailing.room, other.room
def test_ours(): dovetail.room.warn()
def test_a_library_blames_our_test(): other.room.warn_the_caller()
def test_library(): other.room.warn()
def test_library_with_a_name_like_ours(): dovetailing.room.warn()
@pytest.mark.slow
def test_slow(): pass
"""


PLANTED_ROOM = """
from dataclasses import dataclass
from jax import Array
from jaxtyping import Float
def double(x_BE: Float[Array, "batch embed"]) -> Float[Array, "batch embed"]:
    return x_BE * 2
@dataclass
class Pair:
    first: Array
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with three planted packages, planted tests and our settings."""
    folder = tmp_path_factory.mktemp("planted")
    for package in ("dovetail", "dovetailing", "other"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
        (folder / package / "room.py").write_text(LIBRARY)
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (folder / "tests").mkdir()
    (folder / "tests" / "test_planted.py").write_text(TESTS)
    return folder


def outcomes(folder: Path, *arguments: str) -> dict[str, str]:
    """Runs the tests of a project and returns each one's outcome by name."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = re.findall(r"^(PASSED|FAILED) \S+::test_(\w+)", run.stdout, re.MULTILINE)
    return {name: outcome for outcome, name in found}


def test_warnings_from_our_own_modules_are_errors(planted: Path) -> None:
    assert outcomes(planted) == {
        "ours": "FAILED",
        "a_library_blames_our_test": "FAILED",
        "library": "PASSED",
        "library_with_a_name_like_ours": "PASSED",
    }


def test_slow_tests_run_only_when_asked(planted: Path) -> None:
    assert outcomes(planted, "-m", "slow") == {"slow": "PASSED"}


def test_there_are_eight_cpu_devices() -> None:
    assert [device.platform for device in jax.devices()] == ["cpu"] * 8


def test_annotations_are_checked_in_the_rooms_of_arrays(tmp_path: Path) -> None:
    """The rooms' own functions are real code; a module planted behind the same hook may lie."""
    (tmp_path / "planted_room.py").write_text(PLANTED_ROOM)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with jaxtyping.install_import_hook("planted_room", "tests.typechecking.check_calls"):
            room = importlib.import_module("planted_room")
    assert room.double(jnp.ones((2, 3))).shape == (2, 3)
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'x_BE'"):
        room.double(jnp.ones(3))
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'x_BE'"):
        room.double("words")
    assert room.Pair("a leaf that is no array").first == "a leaf that is no array"


def test_the_hook_is_on_for_the_layers() -> None:
    loader = importlib.import_module("dovetail.layers").__spec__.loader
    assert type(loader).__module__.startswith("jaxtyping")


def test_a_test_can_have_an_empty_cache_folder(user_folders: Path, cache_folder: Path) -> None:
    assert list(cache_folder.iterdir()) == []
    assert user_folders not in cache_folder.parents
