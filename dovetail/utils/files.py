"""Files: the user's cache folder, and writes that readers see completely or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        flush(path.parent)  # a rename is durable once the folder is
    finally:
        temporary.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """Returns a hash of a file's content, in 32 characters."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def file_digests(folder: Path) -> dict[str, str]:
    """Returns the digest of each file of a folder, by its path in it."""
    return {
        file.relative_to(folder).as_posix(): file_digest(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file with one a line; drops lines that are damaged or cut off."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    entries = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries.append(entry)
    return entries


@contextlib.contextmanager
def atomic_folder(final: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `final` at the end, or removed on an error.

    If another process creates `final` in the meantime, that one is kept and ours is removed.
    """
    temporary = _temporary_for(final)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        flush_tree(temporary)
        try:
            temporary.rename(final)
            flush(final.parent)
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


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it; a power cut cannot take them away again."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        flush(path.parent)


def flush_tree(folder: Path) -> None:
    """Forces a folder with all its files to disk, and its name in the folder around it."""
    for path in sorted(folder.rglob("*"), reverse=True):  # the content of a folder before it
        flush(path)
    flush(folder)
    flush(folder.parent)


def flush(path: Path) -> None:
    """Forces a file or a folder to disk, so that a power cut cannot leave a part of it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
