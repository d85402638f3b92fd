"""Several processes: clear errors from the environment, and the same numbers as one device."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import ConfigError
from dovetail.parallel import Processes, start_distributed
from tests.parallel.steps import MODELS, OF_CHANGES, TOLERANCE, assert_same, on_one_device
from tests.parallel.training_step import mixtures

WORKER = Path(__file__).parent / "training_step.py"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("DOVETAIL_COORDINATOR", "DOVETAIL_PROCESSES", "DOVETAIL_PROCESS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_one_process_needs_nothing(environment: pytest.MonkeyPatch) -> None:
    assert start_distributed() == Processes(index=0, count=1)


@pytest.mark.parametrize("tasks", ["", "1"])
def test_a_cluster_with_one_task_is_one_process(
    environment: pytest.MonkeyPatch, tasks: str
) -> None:
    environment.setenv("SLURM_STEP_NUM_TASKS", tasks)
    assert start_distributed() == Processes(index=0, count=1)


def test_the_coordinator_needs_a_port(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("DOVETAIL_COORDINATOR", "somewhere")
    with pytest.raises(ConfigError) as caught:
        start_distributed()
    assert str(caught.value) == (
        "DOVETAIL_COORDINATOR: expected the host:port of process 0, or 'auto', got 'somewhere'."
    )


@pytest.mark.parametrize("text", ["", "two", "-1"])
def test_the_number_of_processes_must_be_a_number(
    environment: pytest.MonkeyPatch, text: str
) -> None:
    environment.setenv("DOVETAIL_COORDINATOR", "localhost:1234")
    environment.setenv("DOVETAIL_PROCESSES", text)
    with pytest.raises(ConfigError) as caught:
        start_distributed()
    assert str(caught.value) == (
        f"DOVETAIL_PROCESSES: expected a number, got {text!r}. With DOVETAIL_COORDINATOR set, "
        "every process needs DOVETAIL_PROCESSES (how many) and DOVETAIL_PROCESS (which, from 0)."
    )


def test_the_process_is_one_of_them(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("DOVETAIL_COORDINATOR", "localhost:1234")
    environment.setenv("DOVETAIL_PROCESSES", "2")
    environment.setenv("DOVETAIL_PROCESS", "2")
    with pytest.raises(ConfigError) as caught:
        start_distributed()
    assert str(caught.value) == (
        "DOVETAIL_PROCESS: expected less than DOVETAIL_PROCESSES (2), got 2. "
        "Processes count from 0."
    )


@pytest.mark.sweep
@pytest.mark.parametrize("model", MODELS)
def test_two_processes_of_four_devices_train_as_one_device_does(model: str, tmp_path: Path) -> None:
    port = free_port()
    shared = {"DOVETAIL_COORDINATOR": f"localhost:{port}", "DOVETAIL_PROCESSES": "2"}
    files = [tmp_path / str(index) for index in range(2)]
    workers = [start(model, 4, file, DOVETAIL_PROCESS=file.name, **shared) for file in files]
    told = [finish(worker) for worker in workers]
    assert told == [{"index": index, "count": 2, "devices": 8} for index in range(2)]
    first, second = (pickle.loads(file.read_bytes()) for file in files)
    for name, how in mixtures(model).items():
        assert first[name].losses == second[name].losses, name
        expected = on_one_device(model, how["gradients"].microbatches)
        assert expected.losses[0] > expected.losses[-1], name
        assert_same(first[name], expected, OF_CHANGES.get(model, TOLERANCE))


def start(model: str, devices: int, file: Path, **variables: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    command = [sys.executable, str(WORKER), model, str(devices), str(file)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(worker: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        output, errors = worker.communicate(timeout=1800)
    finally:
        worker.kill()
    assert worker.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])
