"""Files as documents: finding them, reading them, and telling cheaply whether they changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.config import ConfigError
from dovetail.data.folders import data_folder, write_atomically

# Up to this size a corpus is hashed every time, which takes a fraction of a second. Beyond it the
# hash is remembered for as long as no file's size or time of change differs.
_HASHED_EVERY_TIME = 256 * 2**20


@dataclass(frozen=True)
class SourceFile:
    """A file of a corpus: its name within the corpus, and where it is."""

    name: str
    path: Path


def find_files(
    root: Path,
    wanted: Callable[[str], bool],
    excluded_folders: Collection[str] = (),
    depth: int | None = None,
) -> list[SourceFile]:
    """Returns the files under `root` whose name (relative, with '/') is wanted, sorted by name.

    It looks into folders `depth` levels down (None: all of them), but not through links.
    """

    def refuse(error: OSError) -> None:
        raise ConfigError(f"cannot list {error.filename}: {error.strerror}. Check its permissions.")

    found = []
    for folder, folders, files in os.walk(root, onerror=refuse, followlinks=False):
        # Pruned in place, so that the walk never enters them: site-packages, or all of a home
        # folder, can be huge.
        at_the_bottom = depth is not None and len(Path(folder).relative_to(root).parts) >= depth
        keep = [name for name in folders if name not in excluded_folders and not at_the_bottom]
        folders[:] = keep
        for file in files:
            path = Path(folder, file)
            name = path.relative_to(root).as_posix()
            if wanted(name):
                found.append(SourceFile(name, path))
    return sorted(found, key=lambda file: file.name)


def read_bytes(file: SourceFile) -> bytes:
    """Returns a file's content, or raises an error that names the file."""
    try:
        return file.path.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from error


def unreadable(file: SourceFile, error: OSError) -> ConfigError:
    """Returns the error for a file of a corpus that cannot be read."""
    return ConfigError(
        f"cannot read {file.path}: {error.strerror}. "
        "Make it readable, or leave it out of the corpus."
    )


def fingerprint_files(files: Sequence[SourceFile]) -> str:
    """Returns a hash of all names and contents."""
    total, key = _state_of(files)
    if total <= _HASHED_EVERY_TIME:
        return _hash_contents(files)
    memory = data_folder() / "fingerprints" / key
    try:
        return memory.read_text()
    except FileNotFoundError:
        result = _hash_contents(files)
        write_atomically(memory, result)
        return result


def _state_of(files: Sequence[SourceFile]) -> tuple[int, str]:
    """Returns the total size, and a hash that changes when a file is touched (no file is read)."""
    state = hashlib.blake2b(digest_size=16)
    total = 0
    for file in files:
        try:
            found = file.path.stat()
        except OSError as error:
            raise unreadable(file, error) from error
        total += found.st_size
        state.update(f"{file.path.resolve()}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return total, state.hexdigest()


def _hash_contents(files: Sequence[SourceFile]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            with file.path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "blake2b").digest()
        except OSError as error:
            raise unreadable(file, error) from error
        # Every digest has the same length and no name holds a zero byte: nothing runs together.
        whole.update(file.name.encode("utf-8", "surrogateescape") + b"\0" + digest)
    return whole.hexdigest()
