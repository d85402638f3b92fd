"""The same global batches at any number of processes, after kill -9, and after changing it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.data.mixture.recording import SOURCES, mixture

STEPS, ROWS = 24, 8
PATIENCE = 600


def make_texts(folder: Path) -> None:
    for name, count in zip(SOURCES, (150, 60, 30), strict=True):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            text = f"{name} {number} " * (1 + number % 9)
            (folder / name / f"{number}.txt").write_text(text)


def start(count: int, tmp_path: Path, output: Path) -> list[subprocess.Popen[Any]]:
    """Starts training as so many processes that share eight devices, the run and the cache."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        address = f"localhost:{listener.getsockname()[1]}"
    command = [sys.executable, "-m", "dovetail", "train", "recorded-mixture"]
    command += [
        "--import",
        "tests.data.mixture.recording_experiment",
        "--run",
        str(tmp_path / "run"),
    ]
    group = []
    for index in range(count):
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "RECORDED_TEXTS": str(tmp_path / "texts"),
            "RECORDED_LOG": str(tmp_path / "log"),
            "JAX_NUM_CPU_DEVICES": str(ROWS // count),
        }
        if count > 1:
            environment |= {
                "DOVETAIL_COORDINATOR": address,
                "DOVETAIL_PROCESSES": str(count),
                "DOVETAIL_PROCESS": str(index),
            }
        with output.open("a") as stream:
            group.append(
                subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT)
            )
    return group


def saved_step(tmp_path: Path) -> int:
    manifests = (tmp_path / "run" / "checkpoints").glob("*/manifest.json")
    found = (re.match(r"\d+", path.parent.name) for path in manifests)
    return max((int(match[0]) for match in found if match is not None), default=0)


def train_until(step: int, count: int, tmp_path: Path) -> None:
    """Kills all processes once a step is saved; trains to the end for a step beyond it."""
    output = tmp_path / f"output-{count}.txt"
    group = start(count, tmp_path, output)
    try:
        deadline = time.monotonic() + PATIENCE
        while saved_step(tmp_path) < step and time.monotonic() < deadline:
            if any(process.poll() is not None for process in group):
                break
            time.sleep(0.01)
        if step < STEPS:
            assert all(process.poll() is None for process in group), output.read_text()
            for process in group:
                process.send_signal(signal.SIGKILL)
        codes = [process.wait(PATIENCE) for process in group]
        assert step < STEPS or codes == [0] * count, output.read_text()
    finally:
        for process in group:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_batches_do_not_depend_on_processes_or_kills(tmp_path: Path) -> None:
    make_texts(tmp_path / "texts")
    (tmp_path / "log").mkdir()
    (tmp_path / "alone").mkdir()
    for step, count in ((4, 1), (8, 2), (14, 4), (STEPS, 8)):
        train_until(step, count, tmp_path)
    files = list((tmp_path / "log").glob("*.txt"))
    assert len(files) == 1 + 2 + 4 + 8
    seen = {line for file in files for line in file.read_text().splitlines()}

    source = mixture(tmp_path / "texts", tmp_path / "alone").build()
    source.prepare(progress=False)
    for step in range(STEPS):
        source.batch(step)
    [file] = (tmp_path / "alone").glob("*.txt")
    expected = set(file.read_text().splitlines())
    assert len(expected) == STEPS * ROWS
    # The prefetcher may be ahead of the last step of a life, so `seen` has no other rows either.
    assert seen == expected
