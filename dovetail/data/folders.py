"""Where prepared data lives, and how it is written so that nothing is ever seen half-written."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from dovetail.config import ConfigError
from dovetail.hardware import user_cache_folder, write_whole

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_TEMPORARY = ".part-"
_SECONDS_BETWEEN_TRIES = 0.2


class DiskFullError(OSError):
    """There was no room to write; what had been written of it was removed."""


def data_folder() -> Path:
    """Returns the folder of all prepared data: `dovetail/data` in the user's cache."""
    return user_cache_folder() / "data"


@contextlib.contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Gives a temporary folder that becomes `final` at the end, or vanishes if anything fails.

    If another process made `final` in the meantime, that one stays and ours is dropped.
    """
    temporary = _temporary_for(final)
    with _explained(final):
        temporary.mkdir(parents=True)
        try:
            yield temporary
            for path in temporary.rglob("*"):
                _flush(path)
            try:
                temporary.rename(final)
            except OSError:
                if not final.is_dir():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def write_atomically(path: Path, text: str) -> None:
    """Writes a small file at once: readers see the old one, none, or the whole new one."""
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


def remove_folder(folder: Path) -> None:
    """Removes a whole folder, in one step as others see it."""
    aside = _temporary_for(folder)
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def only_maker_of(final: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lets one process at a time make the folder `final`, and clears what killed ones left behind.

    The operating system frees the lock when its holder dies, so a killed preparation blocks
    nobody. Where the file system knows no locks, two may work at once: the final rename still lets
    only whole folders be seen.
    """
    with _lock_file(final) as stream:
        held = _lock(stream, wait=False)
        if held is Lock.BUSY:
            on_wait()
            held = _lock(stream, wait=True)
        if held is Lock.HELD:
            _remove_leftovers(final)
        yield


class Lock(enum.Enum):
    """What came of trying to lock a file."""

    HELD = enum.auto()
    BUSY = enum.auto()
    UNSUPPORTED = enum.auto()


def _lock(stream: IO[str], wait: bool) -> Lock:
    try:
        import fcntl
    except ImportError:  # Windows
        return Lock.UNSUPPORTED
    while True:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                return Lock.BUSY
            time.sleep(_SECONDS_BETWEEN_TRIES)
        except OSError:
            return Lock.UNSUPPORTED
        else:
            return Lock.HELD


def _lock_file(final: Path) -> IO[str]:
    with _explained(final):
        folder = final.parent / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / final.name).open("a")


def _remove_leftovers(ours: Path) -> None:
    """Removes unfinished folders whose makers are gone; `ours` is the one we hold the lock of."""
    for entry in ours.parent.glob(f"*{_TEMPORARY}*"):
        final = entry.with_name(entry.name.partition(_TEMPORARY)[0])
        if final == ours:
            shutil.rmtree(entry, ignore_errors=True)
            continue
        with _lock_file(final) as stream:
            if _lock(stream, wait=False) is Lock.HELD:
                shutil.rmtree(entry, ignore_errors=True)


def _temporary_for(path: Path) -> Path:
    return path.with_name(f"{path.name}{_TEMPORARY}{secrets.token_hex(6)}")


@contextlib.contextmanager
def _explained(target: Path) -> Iterator[None]:
    """Says what to do where the disk is full or the folder cannot be written to."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and not isinstance(error, DiskFullError):
            raise DiskFullError(
                error.errno,
                f"no room left on the disk while writing {target}; what was written of it has been "
                "removed. Free some space, or set XDG_CACHE_HOME to a folder on a larger disk",
            ) from error
        if error.errno in _FORBIDDEN:
            raise ConfigError(
                f"cannot write prepared data to {target.parent}: {error.strerror}. "
                "Set XDG_CACHE_HOME to a folder that can be written to."
            ) from error
        raise


def _flush(path: Path) -> None:
    """Forces a file to disk, so that a power cut cannot leave an empty one under its final name."""
    if path.is_file():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
