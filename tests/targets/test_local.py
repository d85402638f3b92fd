"""This machine as a target: several devices that share one CPU."""

import json
import os
import subprocess
import sys

import pytest

PREPARE = """
import json, os, sys
from dovetail.targets import parse_target, prepare_devices

prepare_devices(parse_target(sys.argv[1]))
import jax

print(json.dumps([jax.device_count(), os.environ.get("XLA_FLAGS", "").split()]))
"""

IN_ONE_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def prepared(target: str, flags: str = "") -> tuple[int, list[str]]:
    """Returns the devices and the flags of a process that was prepared for a target."""
    found = subprocess.run(
        [sys.executable, "-c", PREPARE, target],
        env=os.environ | {"XLA_FLAGS": flags},
        check=True,
        capture_output=True,
        text=True,
    )
    devices, kept = json.loads(found.stdout)
    return devices, kept


def test_several_devices_come_to_collectives_in_one_order() -> None:
    devices, flags = prepared("cpu-4")
    assert devices == 4
    assert IN_ONE_ORDER in flags


def test_what_the_user_sets_counts() -> None:
    theirs = "--xla_cpu_collective_call_terminate_timeout_seconds=7"
    _, flags = prepared("cpu-4", theirs)
    assert flags[-1] == theirs  # XLA goes by the last one


@pytest.mark.parametrize("target", ["cpu", "cpu-1"])
def test_one_device_runs_as_xla_likes(target: str) -> None:
    assert prepared(target) == (1, [])
