"""The token store: a split corpus as memory-mapped token ids, in a folder that never changes.

In it are:

    meta.json                      what is in it, with the size and checksum of every file
    tokenizer/                     what the tokenizer learned
    train.tokens, held_out.tokens  ids, documents end to end, each closed by the end of text
    train.starts, held_out.starts  where each document starts (int64)
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.folders import write_atomically
from dovetail.data.interfaces import SPLITS, SplitSummary

FORMAT = 1
META = "meta.json"
TOKENIZER = "tokenizer"
STARTS_DTYPE = np.dtype("<i8")

# Files up to this size are read through and compared with their checksum whenever a store is opened
# (some ten milliseconds); of larger ones the size is compared.
_CHECKED_BYTES = 64 * 2**20


class DamagedStoreError(ConfigError):
    """A store on disk is not what was written."""


@dataclass(frozen=True)
class StoreMeta:
    """What `meta.json` holds."""

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
    """All ids, memory-mapped (uint16 or uint32)."""
    starts: NDArray[np.int64]
    """Where each document starts."""


class TokenStore:
    """An opened store. Opening it checks it."""

    def __init__(self, folder: Path) -> None:
        """Reads the account of the store and compares the files with it."""
        self.folder = folder
        self.meta = _read_meta(folder)
        for name, (size, checksum) in self.meta.files.items():
            _check_file(folder / name, size, checksum)

    def split(self, name: str) -> TokenSplit:
        """Returns the documents of a split, without reading them yet."""
        summary = self.meta.splits[name]
        token_dtype = np.dtype(self.meta.token_dtype)
        tokens = _map(self.folder / f"{name}.tokens", token_dtype, summary.tokens)
        starts = _map(self.folder / f"{name}.starts", STARTS_DTYPE, summary.documents)
        return TokenSplit(tokens, starts)


def token_dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Returns the smallest dtype that holds every id."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def write_meta(folder: Path, meta: StoreMeta) -> None:
    """Writes the account of a store."""
    text = json.dumps({"format": FORMAT, **asdict(meta)}, indent=2, sort_keys=True)
    write_atomically(folder / META, text + "\n")


def file_account(path: Path) -> tuple[int, int]:
    """Returns the size and CRC-32 of a file."""
    size = checksum = 0
    with path.open("rb") as stream:
        while chunk := stream.read(2**22):
            size += len(chunk)
            checksum = zlib.crc32(chunk, checksum)
    return size, checksum


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
            raise DamagedStoreError(f"{path} has {found} bytes where {size} were written.")
        if size <= _CHECKED_BYTES and file_account(path)[1] != checksum:
            raise DamagedStoreError(f"{path} holds other bytes than were written.")
    except OSError as error:
        raise DamagedStoreError(f"{path} cannot be read: {error.strerror}.") from error


def _map(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    if not length:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r", shape=(length,))
