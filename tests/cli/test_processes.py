"""Several processes, one run: the same numbers as one process; they stop and resume together."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from dovetail.runtime.goodput import goodput
from tests.cli.test_train_and_generate import TINY

STEPS = 200
PATIENCE = 600  # seconds; a busy machine is slow to compile
DEVICES = 4  # in all
COMMAND = [sys.executable, "-c", "from dovetail.cli import main; raise SystemExit(main())"]
SCRIPT = """
import sys, dovetail
folder, *changes = sys.argv[1:]
run = dovetail.experiment("tiny-lm").override(*changes).train(folder=folder)
print("trained to step", run.step)
"""

# Process 1 prepares the data differently: `%s` is what it does first.
OWN_PREPARATION = (
    """
import time, jax
from dovetail.config import ConfigError
from dovetail.data import TokenInput

prepare = TokenInput.prepare

def prepare_late(self, progress=True):
    if jax.process_index() == 1:
        %s
    return prepare(self, progress)

TokenInput.prepare = prepare_late
"""
    + SCRIPT
)


@pytest.fixture
def start(tmp_path):
    """Starts `dovetail train` as so many processes that share devices, run and caches."""
    started = []

    def start(run, count, *more, script=None, late=0.0):
        with socket.socket() as listener:
            listener.bind(("localhost", 0))
            address = f"localhost:{listener.getsockname()[1]}"
        group = []
        for index in range(count):
            time.sleep(late if index else 0.0)
            environment = {
                **os.environ,
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
                "JAX_NUM_CPU_DEVICES": str(DEVICES // count),
            }
            if count > 1:
                environment["DOVETAIL_COORDINATOR"] = address
                environment["DOVETAIL_PROCESSES"] = str(count)
                environment["DOVETAIL_PROCESS"] = str(index)
            command = [*COMMAND, "train", "tiny-lm", "--run", str(tmp_path / run)]
            if script is not None:
                command = [sys.executable, "-c", script, str(tmp_path / run)]
            command += [*TINY, "mesh.fsdp=2", f"steps={STEPS}", *more]
            output = (tmp_path / f"{run}-{len(started)}.txt").open("w+")
            group.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
            group[-1].output = output
            started.append(group[-1])
        return group

    yield start
    for process in started:
        process.kill()
        process.wait()


def finish(group):
    """Returns the exit codes, and shows what was printed if the test then fails."""
    codes = [process.wait(PATIENCE) for process in group]
    for process in group:
        process.output.seek(0)
        print(process.output.read())
    return codes


def losses(folder):
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


def wait_for_step(group, folder):
    """Waits until some steps are done; fails at once if a process ends before."""
    for _ in range(PATIENCE * 10):
        if (folder / "metrics.jsonl").exists() and len(losses(folder)) > 1:
            return
        assert all(process.poll() is None for process in group), finish(group)
        time.sleep(0.1)
    raise AssertionError("no step was made")


@pytest.mark.slow
def test_a_process_that_starts_late_is_waited_for(start):
    """Longer than Gloo waits for a peer in its first collective, which is about 30 seconds."""
    assert finish(start("late", 2, "steps=3", late=40)) == [0, 0]


@pytest.mark.slow
def test_a_process_that_prepares_its_data_for_long_is_waited_for(start):
    late = OWN_PREPARATION % "self.slept or time.sleep(60); TokenInput.slept = True"
    late = late.replace("prepare =", "TokenInput.slept = False\nprepare =", 1)
    assert finish(start("late", 2, "steps=3", script=late)) == [0, 0]


@pytest.mark.slow
def test_a_process_that_cannot_prepare_its_data_ends_the_wait_of_its_peers(start):
    failing = OWN_PREPARATION % "raise ConfigError('the disk of this host is gone')"
    group = start("failing", 2, "steps=3", script=failing)
    codes = finish(group)
    assert all(codes)
    group[0].output.seek(0)
    assert "process 1 cannot go on: ConfigError: the disk of this host" in group[0].output.read()


FAILING = """
import jax
from dovetail.config import ConfigError
from dovetail.trainer import Trainer

def batch(self, step, of=Trainer.batch):
    if step == 5 and jax.process_index() == 0:
        raise ConfigError("the folder of this host is gone")
    return of(self, step)

Trainer.batch = batch
"""


@pytest.mark.slow
def test_a_process_that_fails_alone_does_not_leave_its_peers_waiting(start):
    """They wait for it in a collective, and it would wait for them at its exit, for minutes."""
    group = start("failing", 2, script=FAILING + SCRIPT)
    assert [process.wait(150) != 0 for process in group] == [True, True]
    group[0].output.seek(0)
    assert "the folder of this host is gone" in group[0].output.read()


@pytest.mark.slow
def test_two_processes_train_stop_and_resume_as_one(start, tmp_path):
    assert finish(start("alone", 1)) == [0]
    expected = losses(tmp_path / "alone")
    assert list(expected) == list(range(1, STEPS + 1))

    group = start("pair", 2)
    wait_for_step(group, tmp_path / "pair")
    group[1].send_signal(signal.SIGTERM)  # one of them; both stop after the same step
    assert finish(group) == [75, 75]
    group[0].output.seek(0)
    assert "stopped by SIGTERM to process 1" in group[0].output.read()
    stopped = losses(tmp_path / "pair")
    assert 1 < len(stopped) < STEPS
    assert (tmp_path / "pair" / "checkpoints" / f"{len(stopped)}-1").is_dir()

    assert finish(start("pair", 2)) == [0, 0]
    together = losses(tmp_path / "pair")
    assert list(together) == list(expected)
    np.testing.assert_allclose(list(together.values()), list(expected.values()), rtol=1e-5)

    logs = {path.stem for path in (tmp_path / "pair" / "goodput").iterdir()}
    assert logs == {"000001-0", "000001-1", "000002-0", "000002-1"}
    for process in (0, 1):
        found = goodput(tmp_path / "pair", process)
        assert (found.steps, found.lives, found.repeated_steps) == (STEPS, 2, 0)
        assert found.seconds["peers"] > 0


@pytest.mark.slow
def test_two_processes_train_from_python(start, tmp_path):
    short = ("steps=3", "evaluators={}")
    assert finish(start("alone", 1, *short)) == [0]
    group = start("pair", 2, *short, script=SCRIPT)
    assert finish(group) == [0, 0]
    expected, together = losses(tmp_path / "alone"), losses(tmp_path / "pair")
    assert list(together) == list(expected) == [1, 2, 3]
    np.testing.assert_allclose(list(together.values()), list(expected.values()), rtol=1e-5)
    first, second = ((tmp_path / f"pair-{index}.txt").read_text() for index in (1, 2))
    assert "tiny-lm: training tiny-lm in" in first
    # Threads of Gloo write into each other's lines, so the lines as a whole cannot be compared.
    assert "trained to step 3" in second
    assert "tiny-lm" not in second, "only the first process shows progress"
    assert "compiled" not in second


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_processes_stop_together_while_one_compiles(start, tmp_path, monkeypatch, stopped):
    """Process 1 compiles for ten minutes. A preemption leaves less time than that."""
    monkeypatch.setenv("DOVETAIL_CHAOS", "compile begins@1=sleep:600")
    monkeypatch.setenv("DOVETAIL_CHAOS_PROCESS", "1")
    monkeypatch.setenv("DOVETAIL_CHAOS_FOLDER", str(tmp_path))
    group = start("pair", 2)
    marker = tmp_path / "injected compile begins@1=sleep:600"
    for _ in range(PATIENCE * 10):
        if marker.exists():
            break
        assert all(process.poll() is None for process in group), finish(group)
        time.sleep(0.1)
    time.sleep(5)  # process 0 has compiled, and waits for the other one
    began = time.monotonic()
    group[stopped].send_signal(signal.SIGTERM)
    assert finish(group) == [75, 75]
    assert time.monotonic() - began < 120
    for index in (0, 1):
        said = (tmp_path / f"pair-{index}.txt").read_text()
        assert "Traceback" not in said
    first = (tmp_path / "pair-0.txt").read_text()
    assert "stopped by SIGTERM while the step was compiled; the same command continues" in first


@pytest.mark.slow
def test_a_failed_compilation_of_one_process_ends_the_others(start, tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CHAOS", "compile begins@1=error")
    monkeypatch.setenv("DOVETAIL_CHAOS_PROCESS", "1")
    monkeypatch.setenv("DOVETAIL_CHAOS_FOLDER", str(tmp_path))
    group = start("pair", 2)
    began = time.monotonic()
    codes = finish(group)
    assert 0 not in codes
    assert time.monotonic() - began < 120
    first = (tmp_path / "pair-0.txt").read_text()
    assert "Not all processes have compiled the step" in first
    assert "process 1 cannot go on: OSError" in first
    assert "Input/output error" in first
