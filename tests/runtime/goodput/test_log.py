"""Writing goodput logs: in a thread, whatever the disk does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.runtime import Phases
from dovetail.runtime.goodput import GoodputLog, goodput, log


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(log, "_SECONDS_BETWEEN_LINES", 0.02)


def lines(folder, life=1, process=0):
    text = (folder / "goodput" / f"{life:06d}-{process}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_all_time_is_charged_to_the_class_that_goes_on(tmp_path):
    began = time.monotonic()
    written = GoodputLog(started=began - 2.0)
    written.open(tmp_path, 1)
    with written.during("compile"):
        time.sleep(0.05)
        with written.during("restore"):
            time.sleep(0.1)
    with written.steps(0):
        for step in range(1, 4):
            with written.during("input"):
                time.sleep(0.03)
            time.sleep(0.03)
            written.reached(step)
    with written.during("save"):
        time.sleep(0.05)
    written.close()
    wall = time.monotonic() - began + 2.0
    found = goodput(tmp_path)
    assert found.wall == pytest.approx(wall, abs=0.1)
    assert found.seconds["start"] == pytest.approx(2.0, abs=0.1)
    for name, least in {"compile": 0.05, "restore": 0.1, "input": 0.09, "step": 0.09}.items():
        assert least <= found.seconds[name] < least + 0.5, name
    assert found.seconds["rolled_back"] == 0
    assert (found.steps, found.saves) == (3, 1)
    assert len(lines(tmp_path)) > 5, "a line every interval"


def test_the_fraction_is_that_of_the_log_with_its_earlier_lives(tmp_path):
    for life, first in ((1, 0), (2, 2)):
        written = GoodputLog()
        written.open(tmp_path, life)
        with written.during("compile"):
            time.sleep(0.05)
        with written.steps(first):
            for step in range(first + 1, first + 5):
                time.sleep(0.03)
                written.reached(step)
        fraction = written.fractions()["step"]
        written.close()
        assert fraction == pytest.approx(goodput(tmp_path).fraction, abs=0.1)
    assert goodput(tmp_path).repeated_steps == 2
    assert goodput(tmp_path).seconds["rolled_back"] >= 0.03


def test_a_rollback_lowers_the_fraction(tmp_path):
    written = GoodputLog()
    written.open(tmp_path, 1)
    with written.steps(0):
        for step in range(1, 11):
            time.sleep(0.02)
            written.reached(step)
    before = written.fractions()["step"]
    with written.steps(1):
        written.reached(2)
        after = written.fractions()["step"]
    written.close()
    shares = written.fractions()
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["rolled_back"] > 0.4
    assert before > 0.7
    assert after < 0.4
    assert goodput(tmp_path).repeated_steps == 1


def test_a_full_disk_stops_nothing_and_loses_no_second(tmp_path, caplog, monkeypatch):
    is_full, real = True, os.write

    def write(descriptor, data):
        if not is_full:
            return real(descriptor, data)
        return real(descriptor, data[: len(data) // 2])  # the disk fills up within a line

    monkeypatch.setattr(log.os, "write", write)
    began = time.monotonic()
    written = GoodputLog(began)
    written.open(tmp_path, 1)
    with written.steps(0):
        time.sleep(0.1)
        written.reached(1)
        is_full = False
        time.sleep(0.1)
        written.reached(2)
    written.close()
    found = goodput(tmp_path)
    assert found.wall == pytest.approx(time.monotonic() - began, abs=0.1)
    assert found.steps == 2
    assert caplog.text.count("Training continues") == 1


def test_a_disk_without_any_space_stops_nothing(tmp_path, caplog):
    (tmp_path / "goodput").mkdir()
    (tmp_path / "goodput" / "000001-0.jsonl").symlink_to("/dev/full")
    written = GoodputLog()
    written.open(tmp_path, 1)
    with written.steps(0):
        time.sleep(0.06)
    written.close()
    assert "No space left on device. Training continues." in caplog.text


def test_a_disk_that_hangs_does_not_stall_training(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "_SECONDS_TO_CLOSE", 0.1)
    (tmp_path / "goodput").mkdir()
    os.mkfifo(tmp_path / "goodput" / "000001-0.jsonl")  # opening it waits for a reader, for ever
    began = time.monotonic()
    written = GoodputLog()
    written.open(tmp_path, 1)
    with written.steps(0):
        written.reached(1)
    written.close()
    assert time.monotonic() - began < 2.0


def test_a_clock_that_is_set_changes_no_duration(tmp_path, monkeypatch):
    now, shift = time.time, 0.0
    monkeypatch.setattr(log.time, "time", lambda: now() + shift)
    began = time.monotonic()
    written = GoodputLog(began)
    written.open(tmp_path, 1)
    with written.steps(0):
        time.sleep(0.06)
        shift = -86400.0
        time.sleep(0.06)
        written.reached(1)
    written.close()
    assert goodput(tmp_path).wall == pytest.approx(time.monotonic() - began, abs=0.1)


def test_a_kill_loses_no_more_than_the_last_interval(tmp_path):
    code = (
        "import os, signal, sys, time; from pathlib import Path\n"
        "from dovetail.runtime.goodput import GoodputLog, log\n"
        "log._SECONDS_BETWEEN_LINES = 0.02\n"
        "written = GoodputLog(); written.open(Path(sys.argv[1]), 1)\n"
        "with written.steps(0):\n"
        "    time.sleep(0.2); written.reached(1); time.sleep(0.2)\n"
        "    assert 'jax' not in sys.modules\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    found = goodput(tmp_path)
    assert 0.35 < found.wall < 1.0
    assert found.seconds["rolled_back"] >= 0.1, "the second step did not end"
    assert found.steps == 1


def test_a_long_life_writes_few_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "_SECONDS_BETWEEN_LINES", 0.01)
    written = GoodputLog(started=time.monotonic() - 100_000.0)  # a line every 100 seconds by now
    written.open(tmp_path, 1)
    time.sleep(0.2)
    written.close()
    assert len(lines(tmp_path)) == 2, "the first and the last"


def test_phases_tell_the_watchdog_only_what_it_has_a_limit_for(tmp_path):
    phases = Phases()
    seen = []

    def now() -> str:
        return str(phases._heartbeat._about["phase"])

    with phases:
        phases.open(tmp_path, 1)
        for name in ("peers", "compile"):
            with phases.phase(name):
                seen.append(now())
        with phases.steps(3):
            with phases.phase("input"):
                seen.append(now())
            phases.reached(4)
            with phases.phase("save"):
                seen.append(now())
            seen.append(now())
    assert seen == ["start", "compile", "step", "save", "step"]
    assert phases._heartbeat._about["step"] == 4
    assert phases._heartbeat._about["folder"] == str(Path(tmp_path).absolute())
    assert {name for line in lines(tmp_path) for name in line["seconds"]} >= {"input", "save"}
