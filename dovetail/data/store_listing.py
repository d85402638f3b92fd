"""The token stores in the user's cache: what there is, what is still used, and removal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.data.store import (
    LAST_USED,
    META,
    UNFINISHED,
    DamagedStoreError,
    TokenStore,
    data_folder,
    lock_of,
)
from dovetail.utils import TEMPORARY, format_bytes, format_duration, format_table, remove_folder

COMPLETE, DAMAGED, IS_UNFINISHED, INDEX = "complete", "damaged", "unfinished", "packing index"

_NOT_STORES = ("locks", "fingerprints")


@dataclass(frozen=True)
class StoreEntry:
    """A token store, or the folder of a preparation that is not complete.

    Attributes:
        folder: its folder.
        state: `complete`, `damaged`, `unfinished`, or `packing index` for that of a store.
        bytes: what its files take.
        documents: in all splits; None if it is not complete.
        tokens: in all splits; None if it is not complete.
        unused_seconds: how long ago it was last opened or written.
        in_use: whether a process prepares it now.
    """

    folder: Path
    state: str
    bytes: int
    documents: int | None
    tokens: int | None
    unused_seconds: float
    in_use: bool

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {**vars(self), "folder": str(self.folder)}


def list_stores() -> list[StoreEntry]:
    """Returns all stores, the most recently used first; reads no token files."""
    folder = data_folder()
    entries = folder.iterdir() if folder.is_dir() else []
    found = [_entry(path) for path in entries if path.is_dir() and path.name not in _NOT_STORES]
    return sorted(found, key=lambda entry: entry.unused_seconds)


def prune_stores(unused_days: float, dry_run: bool = False) -> list[StoreEntry]:
    """Removes the stores that nobody has opened for so many days, and returns them.

    Damaged ones and those of preparations that were given up count alike. A run keeps small data in
    its own folder; data of a larger one is prepared again when the run continues.
    """
    old = [
        entry
        for entry in list_stores()
        if entry.unused_seconds >= unused_days * 86400 and not entry.in_use
    ]
    if not dry_run:
        for entry in old:
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                remove_folder(entry.folder)
    return old


def verify_stores() -> dict[Path, str | None]:
    """Compares every file of every complete store with its checksum: None, or what is wrong."""
    found: dict[Path, str | None] = {}
    for entry in list_stores():
        if entry.state in (IS_UNFINISHED, INDEX):
            continue  # an index is verified whenever it is opened
        try:
            TokenStore(entry.folder).verify()
        except DamagedStoreError as error:
            found[entry.folder] = str(error)
        else:
            found[entry.folder] = None
    return found


def stores_report(entries: Sequence[StoreEntry]) -> str:
    """Returns a table of stores with their total."""
    rows = [
        (
            entry.folder.name,
            entry.state + (", being prepared" if entry.in_use else ""),
            format_bytes(entry.bytes),
            f"{entry.documents:,}" if entry.documents is not None else "",
            f"{entry.tokens:,}" if entry.tokens is not None else "",
            f"{format_duration(round(entry.unused_seconds))} ago",
        )
        for entry in entries
    ]
    header = ("store", "state", "size", "documents", "tokens", "last used")
    total = format_bytes(sum(entry.bytes for entry in entries))
    return f"{format_table(rows, header=header, align='<<>>>>')}\n{total} in {data_folder()}"


def _entry(folder: Path) -> StoreEntry:
    sizes, latest = 0, 0.0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a preparation is at work
            status = path.stat()
            sizes += status.st_size if path.is_file() else 0
            latest = max(latest, status.st_mtime)
    if (folder / LAST_USED).exists():
        latest = (folder / LAST_USED).stat().st_mtime
    state, documents, tokens = IS_UNFINISHED, None, None
    if (folder / META).exists() and TEMPORARY not in folder.name:
        try:
            splits = TokenStore.read_meta(folder).splits.values()
            documents = sum(split.documents for split in splits)
            tokens = sum(split.tokens for split in splits)
            state = COMPLETE
        except DamagedStoreError:
            state = INDEX if (folder / "row_starts.npy").exists() else DAMAGED
    age = max(time.time() - latest, 0.0)
    return StoreEntry(folder, state, sizes, documents, tokens, age, _is_in_use(folder, state))


def _is_in_use(folder: Path, state: str) -> bool:
    """Says whether a process holds the lock of an unfinished store."""
    if state != IS_UNFINISHED:
        return False
    name = folder.name.partition(TEMPORARY)[0].removesuffix(UNFINISHED)
    lock = lock_of(folder.with_name(name))
    if lock is None:
        return True
    lock.release()
    return False
