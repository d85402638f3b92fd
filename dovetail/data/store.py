"""The token store: a tokenized corpus in memory-mapped files, in a folder that never changes.

The folder of a store:

    meta.json                      a summary, with the size and checksum of every other file
    tokenizer/                     the trained tokenizer
    train.tokens, held_out.tokens  token ids, documents end to end, each with an end of text
    train.starts, held_out.starts  the offset of each document's first token (int64)
    train.blocks, held_out.blocks  the checksum of each block of the token ids (`blocks.py`)
    train.weights, ...             the loss weight of each token as a target, 0 or 1 (uint8); only
                                   where the corpus has some, as of conversations
    train.weights-blocks, ...      the checksum of each block of the weights
    last-used                      an empty file in the cache: when the store was last opened

Stores are in the user's cache. One process at a time writes a store; readers see it complete or not
at all. Everything but large token files is verified when a store is opened. A block of those is
verified when it is first read.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError, Error, StorageError
from dovetail.data.blocks import VerifiedArray, block_checksums, checksum_of, map_file
from dovetail.data.interfaces import SPLITS, SplitSummary
from dovetail.utils import (
    TEMPORARY,
    Lock,
    atomic_folder,
    atomic_write,
    locked,
    try_lock,
    user_cache_folder,
)

FORMAT = 2
META = "meta.json"
LAST_USED = "last-used"
DAMAGED = "damaged"
UNFINISHED = ".unfinished"
"""Ends the name of the folder of a preparation that is not complete."""
TOKENIZER = "tokenizer"
STARTS_DTYPE = np.dtype("<i8")
WEIGHTS_DTYPE = np.dtype("u1")
# The files that grow with the tokens, and those of their blocks.
_LARGE_FILES = {"tokens": "blocks", "weights": "weights-blocks"}

# Opening a store verifies token files up to this size, which takes about ten milliseconds.
_VERIFIED_AT_ONCE = 64 * 2**20
_OLDEST_FORMAT = 1  # without blocks, and with CRC-32

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class DamagedStoreError(ConfigError):
    """The files of a store differ from what was written."""


class DamagedDataError(StorageError):
    """A block of a store is damaged, as found in training. The next start prepares it again."""


class DiskFullError(OSError):
    """The disk is full. What is done of a preparation stays, so that it can continue."""


@dataclass(frozen=True)
class StoreMeta:
    """The content of `meta.json`."""

    corpus: str
    tokenizer: str
    vocab_size: int
    token_dtype: str
    splits: dict[str, SplitSummary]
    files: dict[str, tuple[int, int]]
    """The size and CRC-32C of every other file."""
    report: dict[str, Any] = field(default_factory=dict)
    """What the preparation counted beside documents, bytes and tokens."""
    format: int = FORMAT


@dataclass(frozen=True)
class TokenSplit:
    """The documents of one split."""

    tokens: NDArray[Any] | VerifiedArray
    """The token ids, memory-mapped (uint16 or uint32)."""
    starts: NDArray[np.int64]
    """The offset of each document's first token."""
    weights: NDArray[np.uint8] | VerifiedArray | None = None
    """The loss weight of each token as a target, 0 or 1, memory-mapped; None counts all of them."""


class TokenStore:
    """An open store. Opening a store checks its files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.meta = folder, self.read_meta(folder)
        for name, (size, checksum) in self.meta.files.items():
            is_large = name.rpartition(".")[2] in _LARGE_FILES
            is_lazy = is_large and size > _VERIFIED_AT_ONCE
            check_file(folder / name, size, None if is_lazy else checksum, self._checksum_of)
        if folder.parent == data_folder():  # what a run keeps is its own, and stays as it is
            with contextlib.suppress(OSError):  # a store may be on a disk that is only read
                (folder / LAST_USED).touch()

    @staticmethod
    def read_meta(folder: Path) -> StoreMeta:
        """Reads the summary of a store, unless a damaged block has been found in it."""
        if (folder / DAMAGED).exists():
            raise DamagedStoreError(f"{folder}: {(folder / DAMAGED).read_text('utf-8')}")
        return _read_meta(folder)

    def split(self, name: str) -> TokenSplit:
        """Returns the documents of a split; they are read on access."""
        summary = self.meta.splits[name]
        tokens = self._mapped(name, "tokens", np.dtype(self.meta.token_dtype))
        starts_file = self.folder / f"{name}.starts"
        starts = map_file(starts_file, STARTS_DTYPE, summary.documents, is_random=False)
        has_weights = f"{name}.weights" in self.meta.files
        weights = self._mapped(name, "weights", WEIGHTS_DTYPE) if has_weights else None
        return TokenSplit(tokens, starts, weights)

    def _mapped(self, split: str, kind: str, dtype: np.dtype[Any]) -> NDArray[Any] | VerifiedArray:
        """Maps a large file, which is verified when it is read; a small one has been verified."""
        path = self.folder / f"{split}.{kind}"
        is_large = self.meta.files[path.name][0] > _VERIFIED_AT_ONCE
        values = map_file(path, dtype, self.meta.splits[split].tokens, is_large)
        if not is_large or self.meta.format == _OLDEST_FORMAT:
            return values
        checksums = np.fromfile(self.folder / f"{split}.{_LARGE_FILES[kind]}", "<u4")
        return VerifiedArray(values, checksums, lambda offset: self._damage(path, offset))

    def verify(self) -> None:
        """Verifies every file completely, and raises a DamagedStoreError for one that differs."""
        for name, (size, checksum) in self.meta.files.items():
            check_file(self.folder / name, size, checksum, self._checksum_of)

    @property
    def _checksum_of(self) -> Callable[[Path], tuple[int, int]]:
        return _old_checksum if self.meta.format == _OLDEST_FORMAT else checksum_of

    def _damage(self, path: Path, offset: int) -> Exception:
        """Marks the store, so that the next start prepares the data again."""
        problem = f"{path.name} does not match its checksum at byte {offset}."
        with contextlib.suppress(OSError):
            atomic_write(self.folder / DAMAGED, problem)
        return DamagedDataError(
            f"{self.folder}: {problem} Start the same command again: it prepares the data anew, "
            "and the run continues."
        )


def token_dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Returns the smallest dtype that holds every id."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def seal(folder: Path, meta: StoreMeta) -> None:
    """Completes a folder that has everything else: writes checksums and `meta.json`."""
    for split, (kind, blocks) in itertools.product(SPLITS, _LARGE_FILES.items()):
        if (folder / f"{split}.{kind}").exists():
            block_checksums(folder / f"{split}.{kind}").tofile(folder / f"{split}.{blocks}")
    files = {
        path.relative_to(folder).as_posix(): checksum_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    values = {**asdict(meta), "files": files}
    write_file(folder / META, json.dumps(values, indent=2, sort_keys=True) + "\n")


def data_folder() -> Path:
    """Returns the folder of all prepared data: `dovetail/data` in the user's cache."""
    return user_cache_folder() / "data"


@contextlib.contextmanager
def unfinished_folder(final: Path) -> Iterator[Path]:
    """Yields the folder of the preparation of `final`: new, or what a killed process left.

    It is removed at the end, and on a mistake of the user. After an error of the disk it stays, so
    that the next try goes on from there. We hold the lock of `final`.
    """
    folder = final.with_name(final.name + UNFINISHED)
    with _explain_errors(final):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            yield folder
        except Error:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


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


def lock_of(final: Path) -> Lock | None:
    """Acquires the lock of a folder that is being made; None if another process holds it."""
    return try_lock(_lock_file(final))


def _read_meta(folder: Path) -> StoreMeta:
    try:
        values = json.loads((folder / META).read_text(encoding="utf-8"))
        splits = {name: SplitSummary(**values["splits"][name]) for name in SPLITS}
        files = {name: (size, checksum) for name, (size, checksum) in values["files"].items()}
        meta = StoreMeta(**{**values, "splits": splits, "files": files})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStoreError(f"{folder / META} cannot be read: {error!r}.") from error
    if not _OLDEST_FORMAT <= meta.format <= FORMAT:
        raise DamagedStoreError(f"{folder / META} is of format {meta.format}, not {FORMAT}.")
    return meta


def check_file(
    path: Path,
    size: int,
    checksum: int | None,
    checksum_of: Callable[[Path], tuple[int, int]] = checksum_of,
) -> None:
    """Raises a DamagedStoreError if a file has another size, or not the checksum that is given."""
    try:
        found = path.stat().st_size
        if found != size:
            raise DamagedStoreError(f"{path} has {found} bytes, expected {size}.")
        if checksum is not None and checksum_of(path)[1] != checksum:
            raise DamagedStoreError(f"{path} does not match its checksum.")
    except OSError as error:
        raise DamagedStoreError(f"{path} cannot be read: {error.strerror}.") from error


def _old_checksum(path: Path) -> tuple[int, int]:
    """Returns the size and CRC-32 of a file, as stores of the oldest format have them."""
    size = checksum = 0
    with path.open("rb") as stream:
        while chunk := stream.read(2**22):
            size += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
    return size, checksum


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
        elif (lock := lock_of(final)) is not None:
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
                f"the disk is full: writing {target} failed. Free some space (`dovetail data "
                "prune` removes data that is no longer used), and start the same command again: it "
                "continues. Or set XDG_CACHE_HOME to a folder on a larger disk",
            ) from error
        if error.errno in _NOT_WRITABLE:
            raise ConfigError(
                f"cannot write prepared data to {target.parent}: {error.strerror}. "
                "Set XDG_CACHE_HOME to a writable folder."
            ) from error
        raise
