"""The ledger of an unfinished preparation: which pieces are done, with checksums of their files.

A piece is done when its entry exists and its files match. Entries are written after their files, so
a preparation that is killed at any point goes on with the pieces that are missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.data.blocks import checksum_of
from dovetail.utils import atomic_write, flush


class Ledger:
    """The entries of one pass over the pieces, in the folder of the preparation."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def file(self, number: int, suffix: str) -> Path:
        """Returns the path of a file of a piece that is done."""
        return self._folder / f"{self._name}-{number:05d}.{suffix}"

    def draft(self, number: int, suffix: str) -> Path:
        """Returns the path under which this process writes a file.

        It has the process in its name: the worker of a killed preparation may live a little longer.
        """
        file = self.file(number, suffix)
        return file.with_name(f"{file.name}.{os.getpid()}.draft")

    def done(self, number: int) -> dict[str, Any] | None:
        """Returns the results of a piece; None if it is not done, or a file of it is damaged."""
        try:
            entry = json.loads(self.file(number, "json").read_text(encoding="utf-8"))
            files, result = entry["files"], dict(entry["result"])
            matches = all(
                checksum_of(self.file(number, suffix)) == tuple(expected)
                for suffix, expected in files.items()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return result if matches else None

    def record(self, number: int, result: Mapping[str, Any], suffixes: Sequence[str]) -> None:
        """Records a piece, and gives its files, which are written, their final names."""
        files = {}
        for suffix in suffixes:
            draft = self.draft(number, suffix)
            flush(draft)
            files[suffix] = checksum_of(draft)
            draft.replace(self.file(number, suffix))
        entry = {"files": files, "result": result}
        atomic_write(self.file(number, "json"), json.dumps(entry))  # also flushes the folder
