"""Files: the user's cache folder, and writes that readers see completely or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

TEMPORARY = ".part-"
"""Between a folder's final name and a random suffix: the name of its temporary folder."""


def user_cache_folder() -> Path:
    """Returns Dovetail's folder in the user's cache: `$XDG_CACHE_HOME/dovetail` on any system.

    Without that variable it is in the system's default cache folder. The folder need not exist.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if root.is_absolute():  # the XDG specification says to ignore relative paths
        return root / "dovetail"
    import platformdirs

    folder = platformdirs.user_cache_path("dovetail", appauthor=False)
    return folder if folder.is_absolute() else Path.home() / ".cache" / "dovetail"


def atomic_write(path: Path, content: str | bytes) -> None:
    """Writes a file so that a reader sees the old content or the new one, never a mixture."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `final` at the end, or removed on an error.

    If another process creates `final` in the meantime, that one is kept and ours is removed.
    """
    temporary = _temporary_for(final)
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


def remove_folder(folder: Path) -> None:
    """Removes a folder. Other processes see it complete or not at all."""
    aside = _temporary_for(folder)
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _temporary_for(path: Path) -> Path:
    return path.with_name(f"{path.name}{TEMPORARY}{secrets.token_hex(6)}")


def _flush(path: Path) -> None:
    """Forces a file to disk, so that a power cut cannot leave an empty one under its final name."""
    if path.is_file():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
