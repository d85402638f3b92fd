"""install.py shows a person what matters of pip's output, and explains failures."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def install() -> ModuleType:
    """The installer, loaded from its file: tools/ is not a package."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "tools" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "  Downloading jaxlib-0.10.2-cp311-cp311-manylinux_2_27_x86_64.whl (83.1 MB)",
            "downloading jaxlib (83.1 MB)",
        ),
        ("Downloading https://host/a/scipy-1.17.1.whl (35 MB)", "downloading scipy (35 MB)"),
        ("  Downloading rich-15.0.0-py3-none-any.whl (243 kB)", ""),
        ("  Downloading tokenizers-0.23.3-cp310-abi3.whl (3.4 MB)", ""),
        ("Installing collected packages: a, b, c", "installing 3 packages"),
        ("Installing collected packages: dovetail", "installing 1 package"),
        ("Requirement already satisfied: jax in /somewhere", ""),
    ],
)
def test_only_what_a_person_waits_for_is_shown(install: ModuleType, line: str, shown: str) -> None:
    assert install.readable(line) == shown


def test_extras_and_lock_reach_pip(install: ModuleType) -> None:
    assert install.pip_arguments("", None)[-2:] == ["--editable", "."]
    arguments = install.pip_arguments("dev", Path("locks/requirements-3.11.txt"))
    assert arguments[-2:] == ["--editable", ".[dev]"]
    assert arguments[-4:-2] == ["--constraint", "locks/requirements-3.11.txt"]


def test_a_missing_lock_file_is_explained(
    install: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install.main(["--constraint", "locks/requirements-2.7.txt"]) == 2
    assert "no lock file locks/requirements-2.7.txt" in capsys.readouterr().err


def test_an_environment_with_an_old_python_is_explained(install: ModuleType) -> None:
    message = install.describe_old_python((3, 9), Path(".venv"))
    assert ".venv was made with Python 3.9" in message
    assert "delete that folder" in message
    assert install.describe_old_python((3, 11), Path(".venv")) == ""


def test_a_failure_shows_the_end_of_pips_log(
    install: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "install.log"
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    install.report_failure(log)
    shown = capsys.readouterr().err
    assert "line 99" in shown
    assert "line 79" not in shown
    assert str(log) in shown


def test_the_keys_of_the_first_experiment_are_cached(
    install: ModuleType, cache_folder: Path
) -> None:
    install.cache_keys()
    assert (cache_folder / "dovetail" / "keys" / "tiny-lm.json").is_file()
