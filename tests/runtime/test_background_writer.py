"""Writers that are slow, broken or dead never stop or stall training."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.runtime import JsonLines, read_metrics
from dovetail.runtime.writers import BackgroundWriter


class Scripted:
    """A writer that records its calls, and does what the test says."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.problem: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def open(self, folder: Path, first_step: int) -> None:
        self._do(("open", first_step))

    def write(self, step: int, metrics: Any) -> None:
        self._do(("write", step))

    def close(self) -> None:
        self._do("close")

    def _do(self, call: Any) -> None:
        self.gate.wait(60)
        if self.problem is not None:
            raise self.problem
        self.calls.append(call)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "dovetail"):
        yield caplog


def wait_until(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def test_all_is_written_in_order(tmp_path: Path) -> None:
    background = BackgroundWriter("json", JsonLines.Config().build())
    background.open(tmp_path, 0)
    for step in range(1, 301):
        background.write(step, {"loss": step / 2})
    background.close()
    assert [entry["step"] for entry in read_metrics(tmp_path / "metrics.jsonl")] == [*range(1, 301)]


def test_a_closed_writer_has_no_thread_and_can_be_opened_again(tmp_path: Path) -> None:
    """A notebook trains many times in one process."""
    before, writer = threading.active_count(), Scripted()
    background = BackgroundWriter("x", writer)
    background.close()
    for first in (0, 5):
        background.open(tmp_path, first)
        assert threading.active_count() == before + 1
        background.write(first + 1, {})
        background.close()
        assert threading.active_count() == before
    assert writer.calls == [("open", 0), ("write", 1), "close", ("open", 5), ("write", 6), "close"]


def test_a_writer_that_fails_is_muted_once_and_revived(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    writer = Scripted()
    background = BackgroundWriter("x", writer, seconds_muted=0.2)
    background.open(tmp_path, 0)
    background.write(1, {})
    wait_until(lambda: len(writer.calls) == 2)
    writer.problem = OSError(28, "No space left on device")
    for step in range(2, 8):
        background.write(step, {})
    wait_until(lambda: background._lost >= 5)
    writer.problem = None
    time.sleep(0.25)
    background.write(8, {})
    background.close()
    assert writer.calls == [("open", 0), ("write", 1), ("open", 1), ("write", 8), "close"]
    assert warnings.text.count("No space left on device") == 1
    assert "The writer 'x' works again; 5 of its metrics are lost." in warnings.text


def test_a_writer_that_raises_anything_does_not_stop_training(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    writer = Scripted()
    writer.problem = TypeError("a mistake in a writer of a user")
    background = BackgroundWriter("x", writer)
    background.open(tmp_path, 0)
    background.write(1, {})
    background.close()
    assert "a mistake in a writer of a user" in warnings.text


def test_a_writer_that_never_answers_is_left_behind(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    writer = Scripted()
    writer.gate.clear()
    background = BackgroundWriter("x", writer, queued=10, seconds_to_close=0.2)
    started = time.monotonic()
    background.open(tmp_path, 0)
    for step in range(500):
        background.write(step, {})
    background.close()
    assert time.monotonic() - started < 5
    assert "The writer 'x' is too slow; metrics are dropped." in warnings.text
    assert "The writer 'x' does not answer" in warnings.text
    assert warnings.text.count("too slow") == 1
    writer.gate.set()


FULL_DISK = """
import resource, signal, sys, time
from pathlib import Path
from dovetail.runtime import TensorBoard
from dovetail.runtime.writers import BackgroundWriter

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that a write fails, as on a full disk
writer = BackgroundWriter("tensorboard", TensorBoard.Config().build(), seconds_muted=0.2)
writer.open(Path(sys.argv[1]), 0)
writer.write(0, {"before": 1.0})
while not writer._queue.empty():  # it imports its library first
    time.sleep(0.01)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
for step in range(1, 400):
    writer.write(step, {f"metric/{number}": 1.0 for number in range(20)})
    time.sleep(0.001)
while not writer._queue.empty():  # it has met the full disk
    time.sleep(0.01)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
time.sleep(0.5)
writer.write(400, {"after": 1.0})
writer.close()
print("closed")
"""


def test_tensorboard_survives_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    """With the library's own queue, the process neither closed the writer nor ended."""
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "closed\n"), ended.stderr
    assert "Traceback" not in ended.stderr
    assert "The writer 'tensorboard' failed" in ended.stderr
    newest = max((tmp_path / "tensorboard").iterdir(), key=lambda file: file.name.split(".")[-1])
    assert b"after" in newest.read_bytes()
