"""Failures end in one line and an exit code; the traceback is there for who asks for it."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import dovetail
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


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG, errno.EROFS])
def test_a_path_that_cannot_be_used_is_wrong_input(fail, number):
    code, said = fail(lambda: throw(OSError(number, os.strerror(number), "runs/mine")))
    assert code == 2
    assert said.startswith(f"dovetail: runs/mine: {os.strerror(number)}. Choose another path.")


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


def test_a_bug_is_one_line_that_asks_for_a_report(fail, monkeypatch):
    code, said = fail(lambda: 1 // 0)
    assert code == 1
    (line,) = said.splitlines()
    assert line.startswith("dovetail: internal error: ZeroDivisionError: ")
    assert "DOVETAIL_TRACEBACK=1" in line
    assert "Please report it" in line
    monkeypatch.setenv("DOVETAIL_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        fail(lambda: 1 // 0)


def test_out_of_memory_says_what_to_try(fail):
    code, said = fail(lambda: throw(RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating")))
    assert code == 1
    assert said.startswith("dovetail: out of memory: ")
    assert "input.batch_size" in said


def test_a_failure_that_the_library_has_explained_still_has_its_traceback(fail, monkeypatch):
    from dovetail.runtime import explained_failures

    @explained_failures()
    def run():
        raise MemoryError

    code, said = fail(run)
    assert code == 1
    assert said.startswith("dovetail: out of memory: MemoryError. Try a smaller")
    assert "DOVETAIL_TRACEBACK=1" in said
    monkeypatch.setenv("DOVETAIL_TRACEBACK", "1")
    with pytest.raises(dovetail.Error) as caught:
        fail(run)
    assert isinstance(caught.value.__cause__, MemoryError)


SCRIPT = [sys.executable, "-m", "dovetail"]


def test_python_dash_m_runs_the_command():
    done = subprocess.run([*SCRIPT, "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("dovetail ")


@pytest.mark.parametrize("command", ["--help", "config list"])
def test_a_reader_that_leaves_is_no_error(command):
    line = f"{sys.executable} -m dovetail {command} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], check=True, capture_output=True, text=True)
    assert done.stderr == ""
    line = f"{sys.executable} -m dovetail {command} >&-"
    done = subprocess.run(["bash", "-c", line], check=True, capture_output=True, text=True)
    assert done.stderr == ""


def catches(process, number):
    """Says whether a process has a handler for a signal (Linux)."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    (mask,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return bool(mask >> (number - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_ctrl_c_in_the_first_second_is_one_line(seconds, tmp_path):
    process = subprocess.Popen(
        [*SCRIPT, "train", "tiny-lm"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while not catches(process, signal.SIGTERM):
        time.sleep(0.005)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 75
    assert said.splitlines()[-1] == "dovetail: stopped"
    assert "Traceback" not in said


def test_doctor_reports_a_broken_backend():
    environment = {**os.environ, "JAX_PLATFORMS": "cuda"}
    done = subprocess.run(
        [*SCRIPT, "doctor", "--json"], env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (missing,) = json.loads(done.stdout)["missing"]
    assert "JAX_PLATFORMS is 'cuda'" in missing


def test_other_names_among_checkpoints_are_left_alone(tmp_path):
    from dovetail.runtime import Checkpointer

    odd = ["007", "\u0664", "1.5", "12.notes", "notes", "-3", "9" * 40]
    for name in odd:
        (tmp_path / name).mkdir()
        (tmp_path / name / "_CHECKPOINT_METADATA").write_text("{}")
    (tmp_path / "5").touch()
    checkpointer = Checkpointer.Config().build()
    checkpointer.open(tmp_path)
    assert checkpointer.steps() == []
    checkpointer.save(3, {"x": np.float32(1.0)})
    assert checkpointer.finish()
    assert checkpointer.steps() == [3]
    assert all((tmp_path / name / "_CHECKPOINT_METADATA").exists() for name in odd)


def train_one_step(tmp_path, *argv):
    """Trains one step with a learning rate that breaks the model."""
    evaluator = ["evaluators.held_out=HeldOutLoss", "evaluators.held_out.num_batches=1"]
    schedule = ["learner.schedule=ConstantSchedule", *argv]
    command = ["train", "tiny-lm", *TINY, *evaluator, *schedule, "--steps", "1", "--json"]
    return main([*command, "--run", str(tmp_path / "run")])


def test_a_metric_that_is_not_a_number_is_an_error_and_valid_json(tmp_path, capsys):
    """The step is finite, and so are the parameters; activations of the next batch overflow."""
    assert train_one_step(tmp_path, "learner.schedule.peak=1e15") == 1
    out, err = capsys.readouterr()

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    metrics = json.loads(out, parse_constant=refuse)["metrics"]
    assert metrics["held_out/loss"] is None
    assert metrics["loss"] > 0
    assert "after the last step, held_out/loss is not a number" in err


def test_a_parameter_that_the_last_update_made_infinite_is_not_saved(tmp_path, capsys):
    """The learning rate is finite; weight decay makes the update larger than that."""
    broken = ["learner.schedule.peak=3e38", "learner.weight_decay=100"]
    assert train_one_step(tmp_path, *broken) == 1
    err = capsys.readouterr().err
    assert "is not finite after step 1" in err
    checkpoints = tmp_path / "run" / "checkpoints"
    assert not checkpoints.exists() or not list(checkpoints.iterdir())


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


def test_a_lost_peer_is_no_bug(fail):
    class JaxRuntimeError(RuntimeError):
        pass

    code, message = fail(lambda: throw(JaxRuntimeError("UNKNOWN: Gloo AllGather failed: closed")))
    assert code == 1
    assert message.startswith("dovetail: lost another process of this run: UNKNOWN: Gloo AllGather")
    assert "internal error" not in message


@pytest.mark.parametrize(("kind", "code"), [("FencedError", 2), ("AgreementError", 1)])
def test_an_error_of_the_runtime_is_its_sentence(fail, kind, code):
    """A restart helps after a missing peer, but not in a run that another life has taken over."""
    import dovetail.runtime

    assert fail(lambda: throw(getattr(dovetail.runtime, kind)("It is so."))) == (
        code,
        "dovetail: It is so.\n",
    )


@pytest.mark.slow
def test_weights_that_do_not_fit_end_the_run_while_the_step_compiles(tmp_path):
    """Python would abort in the compiler's thread."""
    small = ["-m", "dovetail", "train", "tiny-lm", *TINY, "evaluators={}", "--steps", "1"]
    parent, child = str(tmp_path / "parent"), str(tmp_path / "child")
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*argv):
        return subprocess.run(
            [sys.executable, *small, *argv],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("--run", parent).returncode == 0
    done = run("--run", child, "--with", f"from-run:path={parent}", "model.width=48")
    assert done.returncode == 2, done.stderr
    assert "Configure the model with the sizes of the saved one." in done.stderr
