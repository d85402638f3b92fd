"""Heartbeats: a worker sends its step and phase to its supervisor, at least every second.

JAX has heartbeats of its own, but a process that is stuck in Python keeps sending them, and they
end with process 0. These heartbeats report progress to the supervisor, which outlives all workers.
This module imports no JAX.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self

ADDRESS = "DOVETAIL_SUPERVISOR"
"""The environment variable with the host, port and token of the supervisor's channel."""
STACKS = "DOVETAIL_STACKS"
"""The environment variable with the file for the stacks of a worker's threads."""
DUMP_STACKS = signal.SIGUSR2
"""On this signal a worker writes the Python stacks of all its threads."""

_SECONDS = 1.0
_SHORTEST_SECONDS = 0.05  # between messages about fast steps
# A worker without a supervisor saves and ends: nobody would restart it, or stop it.
_SECONDS_ALONE = 30.0


def is_worker() -> bool:
    """Says whether a supervisor started this process."""
    return ADDRESS in os.environ


class Heartbeat:
    """Sends a worker's progress to its supervisor. Without one it does nothing."""

    def __init__(self, index: int = 0, address: str | None = None) -> None:
        """Takes the address from the environment by default; connects when it starts to send."""
        self._address = os.environ.get(ADDRESS) if address is None else address
        self._about: dict[str, Any] = {"index": index, "pid": os.getpid(), "phase": "start"}
        self._changed, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Starts to send, and prepares to write stacks."""
        if self._address:
            write_stacks_on_signal()
            self._thread = threading.Thread(target=self._run, name="dovetail-heartbeat")
            self._thread.daemon = True
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Sends the phase `end`, and stops."""
        self._about["phase"] = "end"
        self._ended.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * _SECONDS)

    def send(self, **facts: Any) -> None:
        """Adds facts, such as the run folder, to all further heartbeats."""
        self._about = {**self._about, **facts}

    def reached(self, step: int) -> None:
        """Sends the last step that is done, because a kill may come at once."""
        self._about = {**self._about, "step": step, "phase": "step"}
        self._changed.set()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Records a block other than steps as a phase, which has its own time limit."""
        before = self._about["phase"]
        self._about = {**self._about, "phase": name}
        self._changed.set()
        try:
            yield
        finally:
            self._about = {**self._about, "phase": before}
            self._changed.set()

    def _run(self) -> None:
        last_contact = time.monotonic()
        while not self._ended.is_set():
            with contextlib.suppress(OSError), self._connect() as connection:
                while True:
                    connection.sendall((json.dumps(self._about) + "\n").encode())
                    last_contact = time.monotonic()
                    if self._ended.is_set():
                        return
                    self._ended.wait(_SHORTEST_SECONDS)
                    self._changed.wait(_SECONDS)
                    self._changed.clear()
            if time.monotonic() - last_contact > _SECONDS_ALONE:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            time.sleep(_SECONDS)

    def _connect(self) -> socket.socket:
        host, port, token = (self._address or "").rsplit(":", 2)
        connection = socket.create_connection((host, int(port)), timeout=5)
        connection.sendall(f"{token}\n".encode())
        return connection


_stacks: IO[str] | None = None


def write_stacks_on_signal() -> None:
    """Makes this process write the stacks of all threads on `DUMP_STACKS`, to its file."""
    global _stacks  # noqa: PLW0603  # faulthandler needs the file to stay open
    path = os.environ.get(STACKS)
    if path and _stacks is None:
        _stacks = Path(path).open("a", encoding="utf-8")  # noqa: SIM115
        # In C, without Python: it works while a thread holds the GIL.
        faulthandler.register(DUMP_STACKS, file=_stacks, all_threads=True)
