"""What a run keeps of its prepared data, so that it can go on without its corpus."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from dovetail.data.interfaces import PreparedData
from dovetail.data.rows import MIXTURE
from dovetail.data.store import LAST_USED
from dovetail.utils import atomic_folder, atomic_write


def keep_data(prepared: PreparedData, kept: Path, max_bytes: int) -> None:
    """Makes the folder `kept` with the prepared data, as hard links where possible.

    More than `max_bytes` stays in the user's cache. Of several corpora, the names of their token
    stores are always kept.
    """
    stores = {part.folder.name: part.folder for part in prepared.parts.values()}
    files = {
        file: Path(name, file.relative_to(folder))
        for name, folder in (stores or {".": prepared.folder}).items()
        for file in folder.rglob("*")
        if file.is_file() and file.name != LAST_USED
    }
    is_small = sum(file.stat().st_size for file in files) <= max_bytes
    if kept.is_dir() or not (is_small or prepared.parts):
        return
    with atomic_folder(kept) as temporary:
        if prepared.parts:
            names = {name: part.folder.name for name, part in prepared.parts.items()}
            atomic_write(temporary / MIXTURE, json.dumps(names))
        for file, name in files.items() if is_small else ():
            _link(file, temporary / name)


def _link(source: Path, target: Path) -> None:
    """Makes a hard link, or a copy where that cannot be."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
