"""Locks between processes. The operating system releases a lock when its holder dies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from filelock import BaseFileLock

_POLL_SECONDS = 0.2


class Lock(Protocol):
    """An acquired lock."""

    def release(self) -> None:
        """Lets others acquire it."""
        ...


def try_lock(path: Path) -> Lock | None:
    """Returns the acquired lock of a lock file; None if it is held elsewhere.

    Raises:
        OSError: if the lock file cannot be opened, or the file system supports no locks.
    """
    from filelock import Timeout  # imports asyncio, which takes 40 ms

    lock = _lock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    except NotImplementedError as error:  # older versions of filelock, without flock
        raise OSError(str(error)) from error
    return lock


@contextlib.contextmanager
def locked(path: Path, on_wait: Callable[[], None]) -> Iterator[bool]:
    """Holds the lock of a lock file; yields False if the file system supports no locks.

    Args:
        path: the lock file; its folder must exist.
        on_wait: called once if another process holds the lock.
    """
    try:
        lock = try_lock(path)
        if lock is None:
            on_wait()
            lock = _lock(path)
            lock.acquire(poll_interval=_POLL_SECONDS)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _lock(path: Path) -> BaseFileLock:
    from filelock import FileLock

    return FileLock(path, thread_local=False)  # whichever thread ends the work releases it
