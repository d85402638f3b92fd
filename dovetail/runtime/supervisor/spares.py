"""Spares: worker processes that have imported everything, and wait to be needed.

Starting Python and importing JAX takes longer than restoring a small state and loading the compiled
step. A spare does both before a worker dies. It cannot do more: the devices are in use, and the
coordinator's address is unknown. The supervisor sends the environment of the new worker as a line
of JSON. This module imports no JAX.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

SPARE = "DOVETAIL_SPARE"
"""The environment variable that makes a worker a spare."""

# What every training run imports; the rest is quick.
_MODULES = (
    "jax",
    "optax",
    "orbax.checkpoint",
    "dovetail.trainer",
    "dovetail.run",
    "dovetail.experiments",
    "dovetail.runtime.checkpoints.checkpointer",
)


class Spares:
    """Keeps a number of spares ready."""

    def __init__(self, command: Sequence[str], count: int) -> None:
        """Takes the command of a worker; starts nothing yet."""
        self._command, self._count = list(command), count
        self._waiting: list[subprocess.Popen[bytes]] = []

    def fill(self) -> None:
        """Starts spares until there are enough."""
        self._waiting = [spare for spare in self._waiting if spare.poll() is None]
        while len(self._waiting) < self._count:
            self._waiting.append(
                subprocess.Popen(
                    self._command,
                    env={**os.environ, SPARE: "1"},
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                )
            )

    def take(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """Turns a spare into a worker with an environment; returns None without a spare."""
        while self._waiting:
            spare = self._waiting.pop(0)
            if spare.poll() is not None or spare.stdin is None:
                continue
            with contextlib.suppress(OSError):
                spare.stdin.write(json.dumps(dict(environment)).encode() + b"\n")
                spare.stdin.close()
                return spare
        return None

    def kill(self) -> None:
        """Ends all spares."""
        for spare in self._waiting:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(spare.pid, signal.SIGKILL)
            if spare.stdin is not None:
                spare.stdin.close()
            spare.wait()
        self._waiting = []


def wait_until_needed() -> float | None:
    """Waits in a spare until it is needed, and returns that time; None in other processes.

    A spare ends if its supervisor has ended.
    """
    if os.environ.pop(SPARE, None) is None:
        return None
    for name in _MODULES:
        importlib.import_module(name)
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    os.environ.update(json.loads(line))
    started = time.monotonic()
    if os.environ.get("DOVETAIL_PROCESS", "0") != "0":
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # one process prints
    return started
