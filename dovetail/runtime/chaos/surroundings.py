"""What a trial runs in: a small disk of its own, or a network of its own. Both need Linux.

A surrounding is a context manager. It takes the folder of the trial, and yields the words that the
command of the run begins with.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

DISK = "disk"
"""The folder of a trial in which the small disk is mounted, and the run with it."""
_DISK_SIZE = "64m"


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


def _run(command: list[str], needs: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise UnavailableError(
            f"this machine cannot do it ({said.strip()}); it needs {needs}"
        ) from error
