"""The token store: a tokenized corpus in memory-mapped files, in a folder that never changes.

The folder of a store:

    meta.json                      a summary, with the size and checksum of every other file
    tokenizer/                     the trained tokenizer
    train.tokens, held_out.tokens  token ids, documents end to end, each with an end of text
    train.starts, held_out.starts  the offset of each document's first token (int64)

Stores are in the user's cache. One process at a time writes a store; readers see it complete or not
at all.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.interfaces import SPLITS, SplitSummary
from dovetail.utils import (
    TEMPORARY,
    atomic_folder,
    atomic_write,
    locked,
    try_lock,
    user_cache_folder,
)

FORMAT = 1
META = "meta.json"
TOKENIZER = "tokenizer"
STARTS_DTYPE = np.dtype("<i8")

# Opening a store compares files up to this size with their checksums, which takes about ten
# milliseconds. Of larger files it compares the size.
_CHECKSUM_LIMIT = 64 * 2**20

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class DamagedStoreError(ConfigError):
    """The files of a store differ from what was written."""


class DiskFullError(OSError):
    """The disk is full. The partial output has been removed."""


@dataclass(frozen=True)
class StoreMeta:
    """The content of `meta.json`."""

    corpus: str
    tokenizer: str
    vocab_size: int
    token_dtype: str
    splits: dict[str, SplitSummary]
    files: dict[str, tuple[int, int]]
    """The size and CRC-32 of every other file."""


@dataclass(frozen=True)
class TokenSplit:
    """The documents of one split."""

    tokens: NDArray[Any]
    """The token ids, memory-mapped (uint16 or uint32)."""
    starts: NDArray[np.int64]
    """The offset of each document's first token."""


class TokenStore:
    """An open store. Opening a store checks its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = _read_meta(folder)
        for name, (size, checksum) in self.meta.files.items():
            _check_file(folder / name, size, checksum)

    def split(self, name: str) -> TokenSplit:
        """Returns the documents of a split; they are read on access."""
        summary = self.meta.splits[name]
        token_dtype = np.dtype(self.meta.token_dtype)
        tokens = _map(self.folder / f"{name}.tokens", token_dtype, summary.tokens)
        starts = _map(self.folder / f"{name}.starts", STARTS_DTYPE, summary.documents)
        return TokenSplit(tokens, starts)


def token_dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Returns the smallest dtype that holds every id."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def write_meta(folder: Path, meta: StoreMeta) -> None:
    """Writes `meta.json`."""
    text = json.dumps({"format": FORMAT, **asdict(meta)}, indent=2, sort_keys=True)
    write_file(folder / META, text + "\n")


def size_and_checksum(path: Path) -> tuple[int, int]:
    """Returns the size and CRC-32 of a file."""
    size = checksum = 0
    with path.open("rb") as stream:
        while chunk := stream.read(2**22):
            size += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
    return size, checksum


def data_folder() -> Path:
    """Returns the folder of all prepared data: `dovetail/data` in the user's cache."""
    return user_cache_folder() / "data"


@contextlib.contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yields a temporary folder that becomes `final` at the end, or is removed on an error."""
    with _explain_errors(final), atomic_folder(final) as temporary:
        yield temporary


def write_file(path: Path, text: str) -> None:
    """Writes a small file atomically; makes its folder first."""
    with _explain_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)


@contextlib.contextmanager
def exclusive(final: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Lets one process at a time make the folder `final`; removes what killed processes left.

    Where the file system supports no locks, two processes may do the same work. The final rename
    still makes only complete folders visible.
    """
    with locked(_lock_file(final), on_wait) as is_held:
        if is_held:
            _remove_leftovers(final)
        yield


def _read_meta(folder: Path) -> StoreMeta:
    try:
        values = json.loads((folder / META).read_text(encoding="utf-8"))
        found = values.pop("format")
        splits = {name: SplitSummary(**values["splits"][name]) for name in SPLITS}
        files = {name: (size, checksum) for name, (size, checksum) in values["files"].items()}
        meta = StoreMeta(**{**values, "splits": splits, "files": files})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStoreError(f"{folder / META} cannot be read: {error!r}.") from error
    if found != FORMAT:
        raise DamagedStoreError(f"{folder / META} is of format {found}, not {FORMAT}.")
    return meta


def _check_file(path: Path, size: int, checksum: int) -> None:
    try:
        found = path.stat().st_size
        if found != size:
            raise DamagedStoreError(f"{path} has {found} bytes, expected {size}.")
        if size <= _CHECKSUM_LIMIT and size_and_checksum(path)[1] != checksum:
            raise DamagedStoreError(f"{path} does not match its checksum.")
    except OSError as error:
        raise DamagedStoreError(f"{path} cannot be read: {error.strerror}.") from error


def _map(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    if not length:  # an empty file cannot be memory-mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r", shape=(length,))


def _lock_file(final: Path) -> Path:
    with _explain_errors(final):
        folder = final.parent / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / final.name


def _remove_leftovers(ours: Path) -> None:
    """Removes temporary folders whose processes are gone. We hold the lock of `ours`."""
    for entry in ours.parent.glob(f"*{TEMPORARY}*"):
        final = entry.with_name(entry.name.partition(TEMPORARY)[0])
        if final == ours:
            shutil.rmtree(entry, ignore_errors=True)
        elif (lock := try_lock(_lock_file(final))) is not None:
            shutil.rmtree(entry, ignore_errors=True)
            lock.release()


@contextlib.contextmanager
def _explain_errors(target: Path) -> Iterator[None]:
    """Turns errors of a full disk or a read-only folder into ones that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL and not isinstance(error, DiskFullError):
            raise DiskFullError(
                error.errno,
                f"the disk is full: writing {target} failed, and the partial output has been "
                "removed. Free some space, or set XDG_CACHE_HOME to a folder on a larger disk",
            ) from error
        if error.errno in _NOT_WRITABLE:
            raise ConfigError(
                f"cannot write prepared data to {target.parent}: {error.strerror}. "
                "Set XDG_CACHE_HOME to a writable folder."
            ) from error
        raise
