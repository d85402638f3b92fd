"""What the world does to a correct program: one line, code 1, and the traceback for who asks."""

import errno
import subprocess
import sys

import pytest

from dovetail.cli import doctor, main
from tests.cli.test_train_and_generate import TINY

FULL = OSError(errno.ENOSPC, "No space left on device", "/runs/tiny-lm/run.json")


@pytest.fixture
def fail(monkeypatch, capfd):
    """Runs a verb that does as told; returns the exit code and what stands on standard error."""

    def fail(action):
        monkeypatch.setattr(doctor, "run", lambda arguments: action())
        code = main(["doctor"])
        return code, capfd.readouterr().err

    return fail


def throw(error):
    raise error


def test_a_full_disk_is_one_line(fail):
    code, said = fail(lambda: throw(FULL))
    assert code == 1
    (line,) = said.splitlines()
    assert line.startswith("dovetail: [Errno 28] No space left on device: '/runs/tiny-lm/run.json'")
    assert "DOVETAIL_TRACEBACK=1" in line


def test_the_traceback_can_be_asked_for(fail, monkeypatch):
    monkeypatch.setenv("DOVETAIL_TRACEBACK", "1")
    with pytest.raises(OSError, match="No space left"):
        fail(lambda: throw(FULL))


def test_a_bug_keeps_its_traceback(fail):
    with pytest.raises(ZeroDivisionError):
        fail(lambda: 1 // 0)


def test_ctrl_c_anywhere_is_code_75(fail):
    assert fail(lambda: throw(KeyboardInterrupt())) == (75, "dovetail: stopped\n")


def test_a_warning_is_one_plain_line():
    code = (
        "import warnings; from dovetail.cli import doctor, main\n"
        "doctor.run = lambda arguments: warnings.warn('prepared data is damaged') or 0\n"
        "raise SystemExit(main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr == "warning: prepared data is damaged\n"


@pytest.mark.slow
def test_debug_nans_names_the_operation_and_its_line(tmp_path, capfd):
    argv = ["train", "tiny-lm", *TINY, "--steps", "9", "--run", str(tmp_path / "run")]
    assert main([*argv, "learner.schedule.peak=1e30", "--debug-nans"]) == 1
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("dovetail: ")
    assert "nan" in line
    assert "dovetail/" in line, "the file of the operation"
