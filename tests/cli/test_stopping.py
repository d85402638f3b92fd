"""Stopping: a signal at any time ends with code 75, and the same command then continues."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dovetail.runtime import StopRequest
from tests.cli.test_train_and_generate import TINY

NOTICE = "finishing this step, then saving; Ctrl-C again exits at once"
PATIENCE = 300  # seconds; a busy machine is slow to compile


@pytest.fixture
def handlers():
    """The handlers before a test, which it must leave as they were."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield before
    assert {number: signal.getsignal(number) for number in numbers} == before


def test_the_first_ctrl_c_is_remembered_and_the_second_leaves(handlers, capfd):
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.received == "SIGINT"
        assert capfd.readouterr().err == f"{NOTICE}\n"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_sigterm_twice_still_saves(handlers, capfd):
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.received == "SIGTERM"
    assert capfd.readouterr().err == ""


def test_a_request_that_is_entered_again_keeps_listening(handlers):
    with StopRequest() as stop:
        with stop:
            pass
        signal.raise_signal(signal.SIGTERM)
    assert stop.received == "SIGTERM"


@pytest.fixture
def train(tmp_path):
    """Starts a training of 600 steps in a process of its own, with an empty cache folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", "from dovetail.cli import main; raise SystemExit(main())"]
    command += ["train", "tiny-lm", *TINY, "evaluators={}", "--steps", "600"]
    started = []

    def start(*more):
        with (tmp_path / "said").open("w") as said:
            started.append(
                subprocess.Popen(
                    [*command, *more],
                    env=environment,
                    cwd=tmp_path,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
            )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition, process):
    """Waits until something has happened in a process that still runs."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "it ended too early"
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


@pytest.mark.slow
def test_sigterm_saves_and_the_same_command_continues(train, tmp_path):
    metrics = tmp_path / "run" / "metrics.jsonl"
    process = train("--run", "run")
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 75, (tmp_path / "said").read_text()
    assert "stopped by SIGTERM after step" in (tmp_path / "said").read_text()
    assert train("--run", "run").wait(PATIENCE) == 0
    said = (tmp_path / "said").read_text()
    assert "resumed from step" in said
    assert "done: 600 steps" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_data_are_prepared_writes_no_run(train, tmp_path, number):
    process = train("--run", "run")
    wait_for((tmp_path / "cache" / "dovetail" / "data").exists, process)
    process.send_signal(number)
    assert process.wait(PATIENCE) == 75, (tmp_path / "said").read_text()
    said = (tmp_path / "said").read_text()
    assert f"stopped by {number.name} before the first step; nothing is written" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_ctrl_c_while_the_step_is_compiled(train, tmp_path):
    process = train("--run", "run")
    wait_for(lambda: "training tiny-lm in run" in (tmp_path / "said").read_text(), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 75, (tmp_path / "said").read_text()
    said = (tmp_path / "said").read_text()
    assert NOTICE in said
    assert "the same command continues" in said


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_python_imports(train, tmp_path, number):
    # Nothing can be seen from outside here; most often this comes while JAX is imported.
    process = train("--run", "run")
    time.sleep(0.7)
    process.send_signal(number)
    assert process.wait(PATIENCE) == 75, (tmp_path / "said").read_text()
    assert not (tmp_path / "run").exists()
