"""What compilers have made, kept among the user's caches: asked again, it is there in seconds.

An entry is known by what the compiler is given: the lowered program, the devices, the compiler's
version and its flags. So nothing stale is ever found, an interrupted search goes on where it was,
and a change of code that leaves the program as it is asks for nothing new.
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

from dovetail.hardware import user_cache_folder
from dovetail.plan.compiled import Compiled, Lowered

_COMPILERS = ("jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin")
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


class ProgramCache:
    """A folder of compiled programs."""

    def __init__(self, folder: Path | None = None) -> None:
        """Takes the folder; None means `programs` in Dovetail's folder among the user's caches."""
        self.folder = folder or user_cache_folder() / "programs"

    def find(self, lowered: Lowered) -> Compiled | None:
        """Returns what was compiled of a program; None where nothing was."""
        try:
            kept = json.loads(gzip.decompress(self._path(lowered).read_bytes()))
            return Compiled(**kept)
        except (OSError, EOFError, ValueError, TypeError):  # not there, or not whole
            return None

    def keep(self, lowered: Lowered, compiled: Compiled) -> None:
        """Keeps a program; a folder that cannot be written is no reason to stop."""
        contents: dict[str, Any] = vars(compiled)
        with contextlib.suppress(OSError):
            path = self._path(lowered)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
            temporary.write_bytes(gzip.compress(json.dumps(contents).encode()))
            temporary.replace(path)

    def _path(self, lowered: Lowered) -> Path:
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
