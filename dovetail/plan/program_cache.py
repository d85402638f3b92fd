"""A cache of compiled programs in the user's cache folder.

The key is the compiler's input: the lowered program, the devices, the compiler's version and its
flags. So no entry is stale, an interrupted search resumes, and a change of code that leaves the
program unchanged compiles nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from dovetail.plan.compiled import CompiledStep, LoweredStep
from dovetail.utils import atomic_write, user_cache_folder

_COMPILERS = ("jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin")
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


class ProgramCache:
    """A folder of compiled programs."""

    def __init__(self, folder: Path | None = None) -> None:
        """Takes the folder; None means `programs` in Dovetail's user cache folder."""
        self.folder = folder or user_cache_folder() / "programs"

    def get(self, lowered: LoweredStep) -> CompiledStep | None:
        """Returns the compiled program, or None if it is not cached."""
        try:
            entry = json.loads(gzip.decompress(self._path(lowered).read_bytes()))
            return CompiledStep(**entry)
        except (OSError, EOFError, ValueError, TypeError):  # missing or damaged
            return None

    def put(self, lowered: LoweredStep, compiled: CompiledStep) -> None:
        """Caches a program. A read-only folder is not an error."""
        contents: dict[str, Any] = vars(compiled)
        with contextlib.suppress(OSError):
            path = self._path(lowered)
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, gzip.compress(json.dumps(contents).encode()))

    def _path(self, lowered: LoweredStep) -> Path:
        flags = [f"{name}={os.environ.get(name, '')}" for name in _FLAGS]
        identity = "\n".join([lowered.identity, _versions(), *flags])
        return self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json.gz"


@functools.cache
def _versions() -> str:
    found = []
    for package in _COMPILERS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    return ", ".join(found)
