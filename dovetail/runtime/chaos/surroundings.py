"""Surroundings of a trial: a small disk, a network of its own, or a trace. All need Linux.

A surrounding is a context manager. It takes the folder of the trial, and yields the prefix of the
run's command.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from dovetail.runtime.chaos.power_cuts import trace_command

DISK = "disk"
"""The folder of a trial in which the small disk is mounted, and the run with it."""
_DISK_SIZE = "64m"
TRACE = "trace"
"""The file of a trial with the system calls of its first life."""


class UnavailableError(Exception):
    """This machine cannot run such a trial."""


@contextlib.contextmanager
def ordinary(folder: Path) -> Iterator[list[str]]:
    """Changes nothing."""
    yield []


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[list[str]]:
    """Mounts a tmpfs, which can be filled without harm to others."""
    disk = folder / DISK
    disk.mkdir()
    _run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_SIZE}", "none", str(disk)], "root")
    try:
        yield []
    finally:
        _run(["umount", "--lazy", str(disk)], "root")


@contextlib.contextmanager
def own_network(folder: Path) -> Iterator[list[str]]:
    """Starts the run in a network namespace, whose loopback interface can be cut."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    prefix = ["unshare", *root, "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    _run([*prefix, "true"], "user namespaces, unshare and ip (Debian: iproute2)")
    yield prefix


@contextlib.contextmanager
def own_cache(folder: Path) -> Iterator[list[str]]:
    """Starts the run with an empty cache, so that it prepares its data and compiles."""
    yield ["env", f"XDG_CACHE_HOME={folder / 'cache'}"]


@contextlib.contextmanager
def traced_disk(folder: Path) -> Iterator[list[str]]:
    """Records the system calls of the first command, to compute a power cut from them."""
    trace = folder / TRACE
    _run(["strace", "--version"], "strace (Debian: strace)")
    is_first = f'[ -e {shlex.quote(str(trace))} ] && exec "$@"'
    yield ["sh", "-c", f'{is_first}; exec {shlex.join(trace_command(trace))} "$@"', "sh"]


def _run(command: list[str], needs: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise UnavailableError(
            f"this machine cannot do it ({said.strip()}); it needs {needs}"
        ) from error
