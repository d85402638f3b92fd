"""This host as a target: virtual devices that share one CPU."""

import json
import os
import subprocess
import sys

import pytest

PREPARE = """
import json, os, sys
from dovetail.targets import create_virtual_devices, parse_target

create_virtual_devices(parse_target(sys.argv[1]))
import jax

print(json.dumps([jax.device_count(), os.environ.get("XLA_FLAGS", "").split()]))
"""

IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def prepared(target: str, flags: str = "") -> tuple[int, list[str]]:
    """Returns the device count and XLA flags of a process that prepared for a target."""
    found = subprocess.run(
        [sys.executable, "-c", PREPARE, target],
        env=os.environ | {"XLA_FLAGS": flags},
        check=True,
        capture_output=True,
        text=True,
    )
    devices, flags_after = json.loads(found.stdout)
    return devices, flags_after


def test_virtual_devices_run_collectives_in_one_order() -> None:
    devices, flags = prepared("cpu-4")
    assert devices == 4
    assert IN_ORDER in flags


def test_flags_of_the_user_come_last() -> None:
    theirs = "--xla_cpu_collective_call_terminate_timeout_seconds=7"
    _, flags = prepared("cpu-4", theirs)
    assert flags[-1] == theirs  # for XLA the last one counts


@pytest.mark.parametrize("target", ["cpu", "cpu-1"])
def test_one_device_needs_no_flags(target: str) -> None:
    assert prepared(target) == (1, [])
