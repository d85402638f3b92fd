"""The host: cores of this process, and the memory limit of its container."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.utils import cpu_cores, host, launched_index, process_started


def test_cores_are_those_that_this_process_may_use() -> None:
    assert cpu_cores() >= 1


def test_a_container_has_no_more_memory_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_CGROUP_LIMITS", ())
    unlimited = host.host_memory_bytes()
    for text, expected in (("1000000", 10**6), ("max", unlimited), (str(2**62), unlimited)):
        (tmp_path / "memory.max").write_text(text + "\n")
        files = (tmp_path / "memory.max", tmp_path / "missing")
        monkeypatch.setattr(host, "_CGROUP_LIMITS", files)
        assert host.host_memory_bytes() == expected


def test_the_index_of_the_process_is_that_of_whoever_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("DOVETAIL_PROCESS", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    assert launched_index() == 0
    for index, name in reversed(list(enumerate(names, 1))):  # the first of them decides
        monkeypatch.setenv(name, str(index))
        assert launched_index() == index
    monkeypatch.setenv("DOVETAIL_PROCESS", "two")  # an error of `start_distributed`
    assert launched_index() == 2


def test_the_start_of_a_process_includes_its_imports() -> None:
    code = (
        "import time; time.sleep(0.3)\n"
        "from dovetail.utils import process_started\n"
        "print(time.monotonic() - process_started())"
    )
    before = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 0.3 <= float(done.stdout) <= time.monotonic() - before + 0.02


def test_where_no_system_tells_a_process_starts_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "sysconf", _unknown)
    before = time.monotonic()
    assert before <= process_started() <= time.monotonic()


def _unknown(name: str) -> int:
    raise ValueError(f"unrecognized configuration name {name}")
