"""What compilers have made, kept among the user's caches: asked again, it is there at once.

An entry is known by the config, the machine, the versions of JAX and of the compiler, and the
sources of every room that a program is made by. So an interrupted search goes on where it was, and
a change of anything that could change the program asks anew.
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
from typing import TYPE_CHECKING, Any

from dovetail.config import to_text
from dovetail.hardware import user_cache_folder
from dovetail.plan.compiled import Compiled

if TYPE_CHECKING:
    from dovetail.targets import Machine
    from dovetail.trainer import Trainer

_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin")
# Rooms that make no programs: they read what the others have made.
_READERS = ("cli", "launch", "modularity", "plan", "serve")


class ProgramCache:
    """A folder of compiled programs."""

    def __init__(self, folder: Path | None = None) -> None:
        """Takes the folder; None means `programs` in Dovetail's folder among the user's caches."""
        self.folder = folder or user_cache_folder() / "programs"

    def find(self, config: Trainer.Config, machine: Machine) -> Compiled | None:
        """Returns what was compiled of a config for a machine; None where nothing was."""
        try:
            kept = json.loads(gzip.decompress(self._path(config, machine).read_bytes()))
            lists = {name: tuple(kept[name]) for name in ("kernels", "slow")}
            return Compiled(**(kept | lists))
        except (OSError, EOFError, ValueError, KeyError, TypeError):  # not there, or not whole
            return None

    def keep(self, config: Trainer.Config, machine: Machine, compiled: Compiled) -> None:
        """Keeps a program; a folder that cannot be written is no reason to stop."""
        contents: dict[str, Any] = vars(compiled)
        with contextlib.suppress(OSError):
            path = self._path(config, machine)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
            temporary.write_bytes(gzip.compress(json.dumps(contents).encode()))
            temporary.replace(path)

    def _path(self, config: Trainer.Config, machine: Machine) -> Path:
        identity = "\n".join([to_text(config), machine.name, _versions(), _sources()])
        return self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json.gz"


@functools.cache
def _versions() -> str:
    found = []
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    return ", ".join(found)


@functools.cache
def _sources() -> str:
    """Returns a digest of the code that makes programs."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in _READERS:
            digest.update(path.read_bytes())
    return digest.hexdigest()
