"""The suite's own promises: warnings are errors, slow tests wait to be asked, eight devices."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from beartype.roar import BeartypeCallHintParamViolation

from tests import rotation, shape_suffixes

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
import dovetail.module, dovetailing.module, other.module
def test_ours(): dovetail.module.warn()
def test_a_library_blames_our_test(): other.module.warn_the_caller()
def test_library(): other.module.warn()
def test_library_with_a_name_like_ours(): dovetailing.module.warn()
@pytest.mark.slow
def test_slow(): pass
"""


PLANTED_MODULE = """
from dataclasses import dataclass
from jax import Array
def double(x_BE: Array) -> Array:
    return x_BE * 2
def add(x_BE: Array, y_BF: Array) -> Array:
    sum_B = x_BE.sum(1) + y_BF.sum(1)
    return sum_B
def lie(x_BE: Array) -> Array:
    y_BEF = x_BE
    return y_BEF
def one(x_1E: Array):
    x_1E.sum()
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
        (folder / package / "module.py").write_text(LIBRARY)
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


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that was imported through the hook, as the subpackages of arrays are."""
    (tmp_path / "planted_module.py").write_text(PLANTED_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    shape_suffixes.install(["planted_module"])
    yield importlib.import_module("planted_module")
    del sys.modules["planted_module"]


def test_annotations_are_checked(checked: Any) -> None:
    assert checked.double(jnp.ones((2, 3))).shape == (2, 3)
    with pytest.raises(BeartypeCallHintParamViolation, match="parameter x_BE"):
        checked.double("words")
    assert checked.Pair("a leaf that is no array").first == "a leaf that is no array"


def test_shape_suffixes_are_checked(checked: Any) -> None:
    with pytest.raises(shape_suffixes.ShapeSuffixError, match=r"double: x_BE promises 2 axes"):
        checked.double(jnp.ones(3))
    assert checked.add(jnp.ones((2, 3)), jnp.ones((2, 4))).shape == (2,)
    with pytest.raises(shape_suffixes.ShapeSuffixError, match=r"B is 2 in .*, but 1 in y_BF"):
        checked.add(jnp.ones((2, 3)), jnp.ones((1, 4)))
    with pytest.raises(shape_suffixes.ShapeSuffixError, match=r"y_BEF promises 3 axes"):
        checked.lie(jnp.ones((2, 3)))
    with pytest.raises(shape_suffixes.ShapeSuffixError, match=r"x_1E promises an axis of 1"):
        checked.one(jnp.ones((2, 3)))


@pytest.mark.parametrize("subpackage", ["kernels", "layers", "models"])
def test_the_hook_is_on(subpackage: str) -> None:
    loader = importlib.import_module(f"dovetail.{subpackage}").__spec__.loader
    assert type(loader).__module__ == "tests.shape_suffixes"


def test_three_thirds_are_the_whole_sweep() -> None:
    names = [f"tests/a.py::test_x[{case}]" for case in range(7)] + ["tests/b.py::test_y"]
    thirds = [rotation.select(names, third) for third in range(3)]
    assert sorted(name for third in thirds for name in third) == sorted(names)
    assert all(2 <= sum("test_x" in name for name in third) <= 3 for third in thirds)
    assert {rotation.third_of(f"commit {number}") for number in range(20)} == {0, 1, 2}


def test_a_test_can_have_an_empty_cache_folder(user_folders: Path, cache_folder: Path) -> None:
    assert list(cache_folder.iterdir()) == []
    assert user_folders not in cache_folder.parents
