"""What was found out before: results on disk, valid for one state of the sources."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import dovetail
from dovetail.hardware import user_cache_folder, write_whole

PACKAGE = Path(next(iter(dovetail.__path__)))
# What only reports on the rest: a change here changes no result.
_APART = ("cli",)


@functools.cache
def fingerprint() -> str:
    """Returns a hash of the sources, of Python and of JAX: results hold as long as it does."""
    seen = hashlib.sha256(f"{sys.version_info[:3]} {platform.machine()}".encode())
    seen.update(metadata.version("jax").encode())
    for file in sources(PACKAGE):
        if file.relative_to(PACKAGE).parts[0] not in _APART:
            seen.update(str(file.relative_to(PACKAGE)).encode() + b"\\0" + file.read_bytes())
    return seen.hexdigest()[:20]


def sources(folder: Path) -> list[Path]:
    """Returns the files that a package's behaviour comes from, in order."""
    found: Iterable[Path] = (
        file for ending in ("py", "toml") for file in folder.rglob(f"*.{ending}")
    )
    return sorted(file for file in found if "__pycache__" not in file.parts)


class Store:
    """Results by key. Written whole after each, so that an interrupted run is taken up again."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        """Reads what is known for the sources as they are."""
        self._file = (folder or user_cache_folder() / "modularity") / f"{name}.json"
        self._known: dict[str, Any] = {}
        if self._file.is_file():
            kept = json.loads(self._file.read_text())
            if kept["sources"] == fingerprint():
                self._known = kept["results"]

    def get(self, key: str) -> Any:
        """Returns a result, or None."""
        return self._known.get(key)

    def put_all(self, results: dict[str, Any]) -> None:
        """Keeps results."""
        self._known |= results
        self._file.parent.mkdir(parents=True, exist_ok=True)
        kept = {"sources": fingerprint(), "results": self._known}
        write_whole(self._file, json.dumps(kept))
