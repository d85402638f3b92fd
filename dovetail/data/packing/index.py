"""The stored index of a packing: which pieces of documents each row holds, in memory-mapped files.

The folder of an index:

    meta.json         the statistics, with the size and checksum of every other file
    starts.npy        the offset in the split of each piece's first token, row by row (int64)
    lengths.npy       the number of tokens of each piece (int32)
    row_starts.npy    the place of each row's first piece, and the number of pieces (int64)

Its name has a fingerprint of everything that its content depends on: the document starts, the
sequence length, and the config of the packing. A damaged index is built again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.data.blocks import checksum_of
from dovetail.data.packing.interfaces import PackingStatistics
from dovetail.data.store import (
    META,
    STARTS_DTYPE,
    DamagedStoreError,
    TokenSplit,
    check_file,
    exclusive,
    new_folder,
    write_file,
)
from dovetail.utils import Progress, remove_folder

FORMAT = 1
_ARRAYS = ("starts", "lengths", "row_starts")


@dataclass(frozen=True)
class PackingIndex:
    """The pieces of all rows, row by row; row i has those from row_starts[i] to row_starts[i+1]."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int32]
    row_starts: NDArray[np.int64]
    statistics: PackingStatistics


def fingerprint(split: TokenSplit, settings: str) -> str:
    """Returns a hash of what an index depends on: the document starts, and the settings."""
    digest = hashlib.blake2b(f"{FORMAT} {len(split.tokens)}\n{settings}".encode(), digest_size=6)
    digest.update(np.ascontiguousarray(split.starts, STARTS_DTYPE).data)
    return digest.hexdigest()


def open_index(folder: Path, build: Callable[[], PackingIndex], progress: bool) -> PackingIndex:
    """Opens the index of a folder; builds it first if it is missing or damaged.

    One process at a time builds an index. The others wait for it, and open it.
    """
    if folder.exists():
        try:
            return read_index(folder)
        except DamagedStoreError as error:
            warnings.warn(f"a packing index is damaged and will be rebuilt: {error}", stacklevel=2)
    with Progress(f"packing {folder.name}", enabled=progress) as shown:

        def say_waiting() -> None:
            shown.say("waiting for another process that is building the same index")

        with exclusive(folder, say_waiting):
            with contextlib.suppress(DamagedStoreError):
                return read_index(folder)  # another process built it in the meantime
            if folder.exists():
                remove_folder(folder)
            shown.stage("building the index")
            with new_folder(folder) as unfinished:
                _write(unfinished, build())
            return read_index(folder)


def read_index(folder: Path) -> PackingIndex:
    """Opens an index, and checks its files.

    Raises:
        DamagedStoreError: if a file is missing, or differs from what was written.
    """
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        if meta["format"] != FORMAT:
            raise ValueError(f"expected format {FORMAT}, got {meta['format']}")
        statistics = PackingStatistics(**meta["statistics"])
        for name in _ARRAYS:
            check_file(folder / f"{name}.npy", *meta["files"][name])
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedStoreError(f"{folder} cannot be read as an index: {error!r}.") from error
    return PackingIndex(**arrays, statistics=statistics)


def _write(folder: Path, index: PackingIndex) -> None:
    files: dict[str, Any] = {}
    for name in _ARRAYS:
        np.save(folder / f"{name}.npy", getattr(index, name))
        files[name] = checksum_of(folder / f"{name}.npy")
    meta = {"format": FORMAT, "statistics": vars(index.statistics), "files": files}
    write_file(folder / META, json.dumps(meta, indent=2, sort_keys=True) + "\n")
