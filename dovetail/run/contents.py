"""What makes a run folder self-contained: its tokenizer, its data, and the source of its model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import RunError
from dovetail.data import (
    CanChangeData,
    CanSkipBatches,
    DamagedStoreError,
    HasPreparedData,
    data_folder,
    has_tokenizer,
    keep_data,
)
from dovetail.run.data_changes import KEY
from dovetail.runtime import FaultLog, RunFolder
from dovetail.utils import atomic_folder, file_digest, file_digests

if TYPE_CHECKING:
    from dovetail.data import Input

# Data up to this size is kept with the run (as hard links where possible).
_MAX_DATA_BYTES = 64 * 10**6


def save_tokenizer(folder: RunFolder, source: Input) -> dict[str, str] | None:
    """Saves the tokenizer of an input, and returns the digest of each file; None without one."""
    if not has_tokenizer(source):
        return None
    if not folder.tokenizer.is_dir():
        with atomic_folder(folder.tokenizer) as temporary:
            source.tokenizer.save(temporary)
    return file_digests(folder.tokenizer)


def use_contents(
    folder: RunFolder, source: Input, log: Callable[[str], None], is_changed: bool = False
) -> None:
    """Gives an input what its run began with, if it has begun: the tokenizer, and the data.

    If the data has changed, only the tokenizer.
    """
    about = folder.about_if_any()
    if about is None:
        return
    if isinstance(source, CanChangeData) and (is_changed or about.get(KEY)):
        source.keep_tokenizer(folder.tokenizer)  # one trained on other sources has other tokens
        if is_changed:
            return
    if has_tokenizer(source) and folder.tokenizer.is_dir() and check_tokenizer(folder, about):
        source.load_tokenizer(folder.tokenizer)
    if (warning := use_saved_data(folder, about, source)) is not None:
        log(warning)


def open_input(folder: RunFolder, source: Input, log: Callable[[str], None]) -> None:
    """Makes an input give the batches of a run: its data, without the batches that it skipped.

    Prepares the data. A RunError says if the run's data is gone, and the corpus gives other data.
    """
    use_contents(folder, source, log)
    before = folder.about().get("data")
    if before is not None and isinstance(source, HasPreparedData):
        now = source.prepare().folder.name
        if now != before:
            raise RunError(
                f"{folder.path}: the corpus has changed since this run was trained (its data was "
                f"{before}, now it is {now}), so its batches would be others. Restore the corpus."
            )
    if (skips := FaultLog(folder.path).skips()) and isinstance(source, CanSkipBatches):
        source.skip_batches(skips)


def check_tokenizer(folder: RunFolder, about: Mapping[str, Any]) -> bool:
    """Raises a RunError if a file of the tokenizer is missing or damaged.

    Returns whether the folder has the tokenizer; older runs have that of an imported model alone.
    """
    for name, expected in (about.get("tokenizer") or {}).items():
        file = folder.tokenizer / name
        got = file_digest(file) if file.is_file() else None
        if got != expected:
            state = "is missing" if got is None else f"is damaged: its digest is {got}"
            raise RunError(
                f"{file} {state}, expected {expected} as {folder.path}/run.json says. Restore it "
                "from a copy of the run; with another tokenizer the text would be nonsense."
            )
    return "tokenizer" in about or "imported" in about or folder.tokenizer.is_dir()


def save_data(folder: RunFolder, source: Input) -> str | None:
    """Keeps small prepared data with the run, and returns its name; None without prepared data."""
    if not isinstance(source, HasPreparedData):
        return None
    prepared = source.prepare()
    keep_data(prepared, folder.data / prepared.folder.name, _MAX_DATA_BYTES)
    return prepared.folder.name


def use_saved_data(folder: RunFolder, about: Mapping[str, Any], source: Input) -> str | None:
    """Makes an input use the data that a run began with, if it is still there.

    It is looked for in the run folder, then in the user's cache. So a run goes on with the same
    data if the corpus has changed or is gone. Returns a warning if the data is damaged.
    """
    name = about.get("data")
    if name is None or not isinstance(source, HasPreparedData):
        return None
    warning = None
    for kept in (folder.data / name, data_folder() / name):
        if kept.is_dir():
            try:
                source.use_prepared(kept)
            except DamagedStoreError as error:
                warning = f"{error} Data is prepared from the corpus instead."
            else:
                return None
    return warning


def save_source(folder: RunFolder, source: Path | None) -> None:
    """Copies the config files of the imported model that this one was initialized from."""
    if source is not None and not folder.source.is_dir():
        with atomic_folder(folder.source) as temporary:
            shutil.copytree(source, temporary, dirs_exist_ok=True)
