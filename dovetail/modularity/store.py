"""What was found out before: results on disk, valid for one state of the sources."""

from __future__ import annotations

import ast
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
# What results come from, beside our sources.
_LIBRARIES = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint")
# What only tells of results: a change here changes none.
_APART = ("growth.py", "history.py", "plot.py", "report.py", "written.py", "scan")


@functools.cache
def fingerprint() -> str:
    """Returns a hash of what the sources mean, of Python and of libraries.

    Results hold as long as it does: comments and the shape of lines may change.
    """
    versions = [f"{name} {metadata.version(name)}" for name in _LIBRARIES]
    seen = hashlib.sha256(f"{sys.version_info[:3]} {platform.machine()} {versions}".encode())
    for file in sources(PACKAGE):
        name = file.relative_to(PACKAGE)
        if name.parts[0] == "modularity" and name.parts[1] in _APART:
            continue
        text = file.read_text()
        meaning = ast.dump(ast.parse(text)) if file.suffix == ".py" else text
        seen.update(f"{name}\0{meaning}\0".encode())
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
