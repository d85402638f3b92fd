"""The host: cores of this process, and the memory limit of its container."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.utils import cpu_cores, host


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
